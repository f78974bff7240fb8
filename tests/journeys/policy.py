# %% PPO with generalised advantages, an early stop on KL and minibatches -> update
class ActorCritic(nn.Module):
    def __init__(self, obs=6, act=3, hidden=16):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, act))
        self.v = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def evaluate(self, obs, action):
        dist = torch.distributions.Categorical(logits=self.pi(obs))
        return dist.log_prob(action), dist.entropy(), self.v(obs).squeeze(-1)


ac = ActorCritic().to(device)
optimizer = torch.optim.Adam(ac.parameters(), lr=3e-4, eps=1e-5)
gamma, lmbda, clip, target_kl = 0.99, 0.95, 0.2, 0.03
writer = []
num_updates, total_updates = 0, 100


def compute_gae(rewards, values, dones, last_value):
    advantages = torch.zeros_like(rewards)
    last = 0.0
    for t in reversed(range(len(rewards))):
        nextvalue = last_value if t == len(rewards) - 1 else values[t + 1]
        nonterminal = 1.0 - dones[t]
        delta = rewards[t] + gamma * nextvalue * nonterminal - values[t]
        last = delta + gamma * lmbda * nonterminal * last
        advantages[t] = last
    return advantages, advantages + values


def update(obs, actions, old_logp, rewards, values, dones, last_value):
    global num_updates
    num_updates += 1
    frac = 1.0 - num_updates / total_updates
    optimizer.param_groups[0]["lr"] = frac * 3e-4
    adv, returns = compute_gae(rewards, values, dones, last_value)
    clipfracs = []
    for epoch in range(2):
        logp, entropy, value = ac.evaluate(obs, actions)
        logratio = logp - old_logp
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfracs.append(((ratio - 1.0).abs() > clip).float().mean().item())
        a = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = torch.max(-a * ratio, -a * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
        v_loss = 0.5 * ((value - returns) ** 2).mean()
        loss = pg - 0.01 * entropy.mean() + 0.5 * v_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
        optimizer.step()
    writer.append({"loss": loss.item(), "kl": approx_kl.item(), "clip": np.mean(clipfracs)})
    return loss


args = (
    torch.randn(8, 6, device=device),
    torch.randint(0, 3, (8,), device=device),
    torch.randn(8, device=device) * 0.1 - 1.1,
    torch.randn(8, device=device),
    torch.randn(8, device=device),
    torch.randint(0, 2, (8,), device=device).float(),
    torch.randn((), device=device),
)
