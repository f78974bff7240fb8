# %% PPO with an early stop by KL -> ppo_epoch
actor = nn.Linear(4, 3).to(device)
opt = torch.optim.Adam(actor.parameters(), lr=3e-4, capturable=True)
target_kl, clip = 1e6, 0.2
stats = {"kl": [], "clipfrac": []}
args = (torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device), torch.randn(8, device=device), torch.randn(8, device=device) - 1)

def ppo_epoch(obs, act, adv, logp_old):
    logp = F.log_softmax(actor(obs), -1).gather(1, act[:, None]).squeeze(1)
    ratio = torch.exp(logp - logp_old)
    loss = -torch.min(ratio * adv, torch.clamp(ratio, 1 - clip, 1 + clip) * adv).mean()
    approx_kl = (logp_old - logp).mean().item()  #- expect: sync-item
    clipfrac = torch.as_tensor(ratio.gt(1 + clip) | ratio.lt(1 - clip), dtype=torch.float32).mean().item()  #- expect: sync-item
    #+ approx_kl = (logp_old - logp).mean()
    #+ clipfrac = (ratio.gt(1 + clip) | ratio.lt(1 - clip)).float().mean()
    stats["kl"].append(approx_kl)  #- may: host-counter
    stats["clipfrac"].append(clipfrac)  #- may: host-counter
    if approx_kl > 1.5 * target_kl:  #- may: branch-frozen data-dependent-branch
        return loss.detach()  #-
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()  #-
    #+ return loss.detach(), approx_kl.detach(), clipfrac
#+ def after(out, i):
#+     stats["kl"].append(out[1].item())
#+     stats["clipfrac"].append(out[2].item())
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% DQN with epsilon that decays by steps -> select_action
eps_start, eps_end, eps_decay, steps_done = 0.9, 0.05, 10, 0
policy_net = nn.Linear(4, 2).to(device)
args = (torch.randn(1, 4, device=device),)
ignore = {"result", "steps_done"}

def select_action(state):  # (random)
    global steps_done  #-
    sample = random.random()  #-
    eps_threshold = eps_end + (eps_start - eps_end) * math.exp(-1.0 * steps_done / eps_decay)
    steps_done += 1  #- expect: host-counter
    if sample > eps_threshold:  #- expect: branch-frozen|host-random
        with torch.no_grad():  #-
            return policy_net(state).max(1).indices.view(1, 1)  #-
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)  #- expect: tensor-literal may: host-random
    #+ with torch.no_grad():
    #+     greedy = policy_net(state).max(1).indices.view(1, 1)
    #+ explore = torch.randint(0, 2, (1, 1), device=device)
    #+ return torch.where(torch.rand(1, 1, device=device) > eps_threshold, greedy, explore)
# %% DQN: non-final states by a mask -> optimize_model
policy, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(policy.parameters(), lr=1e-2)
args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6, 1), device=device), torch.randn(6, device=device),
        torch.randn(6, 4, device=device), torch.tensor([True, True, False, True, False, True], device=device))

def optimize_model(state, action, reward, next_state, non_final):
    q = policy(state).gather(1, action)
    next_v = torch.zeros(6, device=device)
    with torch.no_grad():
        next_v[non_final] = target(next_state[non_final]).max(1).values  #- expect: dynamic-shape mask-assignment
        #+ next_v = torch.where(non_final, target(next_state).max(1).values, next_v)
    expected = next_v * 0.99 + reward
    loss = F.smooth_l1_loss(q, expected.unsqueeze(1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    opt.step()
    return loss.detach()
# %% soft update of a target network through state_dict -> soft_update
policy_net, target_net, TAU = nn.Linear(3, 2).to(device), nn.Linear(3, 2).to(device), 0.1
opt = torch.optim.SGD(policy_net.parameters(), lr=1e-2)
args = (torch.randn(4, 3, device=device),)

def soft_update(x):
    loss = policy_net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    target_sd, policy_sd = target_net.state_dict(), policy_net.state_dict()
    for key in policy_sd:
        target_sd[key] = policy_sd[key] * TAU + target_sd[key] * (1 - TAU)
    target_net.load_state_dict(target_sd)
    return loss.detach()
# %% hard update every few learning steps -> learn
online, target = nn.Linear(3, 2).to(device), nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(online.parameters(), lr=1e-2)
learn_step_counter, TARGET_EVERY = 0, 4
args = (torch.randn(4, 3, device=device),)

def learn(x):
    global learn_step_counter  #-
    if learn_step_counter % TARGET_EVERY == 0:  #- expect: branch-frozen
        target.load_state_dict(online.state_dict())  #-
    learn_step_counter += 1  #- expect: host-counter
    loss = F.mse_loss(online(x), target(x).detach())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
#+ def after(loss, i):
#+     global learn_step_counter
#+     learn_step_counter += 1
#+     if learn_step_counter % TARGET_EVERY == 0:
#+         target.load_state_dict(online.state_dict())
ignore = {"target", "result", "online"}
# %% REINFORCE over a saved episode -> finish_episode
policy = nn.Linear(4, 2).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2, capturable=True)
gamma, eps = 0.99, float(np.finfo(np.float32).eps)
args = (torch.randn(5, 4, device=device), torch.randint(0, 2, (5,), device=device), torch.rand(5, device=device))

def finish_episode(states, actions, rewards):
    R, returns = 0, []
    for r in rewards.flip(0):
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns, device=device)  #- expect: sync-item|tensor-literal|copy-to-gpu
    #+ returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    logp = F.log_softmax(policy(states), -1)[torch.arange(5, device=device), actions]
    loss = (-logp * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% generalized advantages backwards, clean -> gae
args = (torch.rand(6, 3, device=device), torch.randn(7, 3, device=device), torch.zeros(6, 3, device=device))

def gae(rewards, values, dones):
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(6)):
        nonterminal = 1.0 - dones[t]
        delta = rewards[t] + 0.99 * values[t + 1] * nonterminal - values[t]
        advantages[t] = last = delta + 0.99 * 0.95 * nonterminal * last
    return advantages, advantages + values[:-1]
# %% an agent class whose act goes through numpy -> act
class Agent:
    def __init__(self):
        self.net, self.noise_std = nn.Linear(3, 2).to(device), 0.1
    def act(self, obs):
        with torch.no_grad():
            action = self.net(obs).cpu().data.numpy()  #- expect: copy-to-cpu
            #+ action = self.net(obs)
        action = np.clip(action * 2, -1, 1)  #-
        return torch.from_numpy(action).to(device)  #- expect: copy-to-gpu
        #+ return (action * 2).clamp(-1, 1)

agent = Agent()
args = (torch.randn(2, 3, device=device),)

def act(obs):
    return agent.act(obs)
# %% entropy coefficient learned through its logarithm, with a report -> update_alpha
log_alpha = torch.zeros(1, device=device, requires_grad=True)
alpha_opt = torch.optim.Adam([log_alpha], lr=3e-2, capturable=True)
alpha = 1.0
args = (torch.randn(8, device=device),)

def update_alpha(log_pi):
    global alpha  #-
    alpha_loss = -(log_alpha * (log_pi + (-2.0)).detach()).mean()
    alpha_opt.zero_grad()
    alpha_loss.backward()
    alpha_opt.step()
    alpha = log_alpha.exp().item()  #- expect: sync-item may: host-counter
    actor_loss = (alpha * log_pi).mean()  #- may: scalar-frozen
    #+ actor_loss = (log_alpha.detach().exp() * log_pi).mean()
    return actor_loss
#+ def after(out, i):
#+     global alpha
#+     alpha = log_alpha.exp().item()
# %% prioritized sampling by multinomial and an indexed write (random) -> update_priorities
priorities = torch.ones(16, device=device)
data = torch.randn(16, 4).to(device)
net = nn.Linear(4, 1).to(device)
args = (torch.randn(5, device=device),)

@torch.no_grad()
def update_priorities(noise):
    idx = torch.multinomial(priorities, 5, replacement=True)
    td = (net(data[idx]).squeeze(1) - noise).abs()
    priorities[idx] = td + 1e-5
    return td.mean()
# %% done flags reset the recurrent state with a number -> rollout_step
gru = nn.GRUCell(3, 4).to(device)
h = torch.zeros(2, 4, device=device)
args = (torch.randn(2, 3, device=device), torch.tensor([0, 1], device=device))

@torch.no_grad()
def rollout_step(obs, done):
    h.copy_(gru(obs, h))
    idx = done.nonzero().squeeze(-1)  #- expect: dynamic-shape
    h[idx] = 0.0  #- may: scalar-assignment
    #+ h.mul_(1.0 - done[:, None].float())
    return h.clone()
# %% actions of a distribution that validates, and a reward normalizer -> policy_step
class RunningMeanStd:
    def __init__(self):
        self.mean, self.var, self.count = torch.zeros((), device=device), torch.ones((), device=device), 1e-4
    def update(self, x):
        delta, n = x.mean() - self.mean, x.numel()
        tot = self.count + n
        self.mean = self.mean + delta * n / tot  #- expect: stale-input scalar-frozen
        self.count = tot  #- expect: host-counter
        #+ self.mean += delta * n / (self.total + n)
        #+ self.total += n
rms = RunningMeanStd()
#+ rms.total = torch.full((), 1e-4, device=device)
actor = nn.Linear(3, 4).to(device)
args = (torch.randn(5, 3, device=device), torch.randn(5, device=device))

@torch.no_grad()
def policy_step(obs, reward):
    dist = torch.distributions.Categorical(logits=actor(obs))  #- expect: argument-check
    #+ dist = torch.distributions.Categorical(logits=actor(obs), validate_args=False)
    rms.update(reward)
    return dist.entropy(), reward - rms.mean
