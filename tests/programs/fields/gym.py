# %% epsilon-greedy by Python's random and item (random) -> act
q = nn.Linear(4, 3).to(device)
eps = 0.3
args = (torch.randn(1, 4, device=device),)

@torch.no_grad()
def act(state):
    if random.random() < eps:  #- expect: branch-frozen|host-random
        return torch.tensor([[random.randrange(3)]], device=device)  #- may: host-random copy-to-gpu scalar-frozen tensor-literal
    #+ explore = torch.rand(1, 1, device=device) < eps
    #+ return torch.where(explore, torch.randint(0, 3, (1, 1), device=device), q(state).max(1)[1].view(1, 1))
    return q(state).max(1)[1].view(1, 1)  #-
# %% a replay ring on the device with an integer pointer in a buffer -> store
class Replay(nn.Module):
    def __init__(self, size, dim):
        super().__init__()
        self.size = size
        self.register_buffer("data", torch.zeros(size, dim))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))
    def add(self, batch):
        n = batch.shape[0]
        ptr = int(self.ptr)  #- expect: sync-item
        self.data[ptr : ptr + n] = batch  #- may: size-frozen
        self.ptr[0] = (ptr + n) % self.size  #- expect: scalar-assignment
        #+ self.data.index_copy_(0, self.ptr + torch.arange(n, device=device), batch)
        #+ self.ptr.add_(n).remainder_(self.size)

memory = Replay(8, 3).to(device)
args = (torch.randn(2, 3, device=device),)

def store(batch):
    memory.add(batch)
    return memory.data.mean()
# %% a target network is synchronized every few learn steps -> learn
policy, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(policy.parameters(), lr=0.05)
learn_step = 0  #-
#+ learn_step = torch.zeros((), device=device)
args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6, 1), device=device), torch.randn(6, 1, device=device), torch.randn(6, 4, device=device))

def learn(s, a, r, s2):
    global learn_step  #-
    if learn_step % 3 == 0:  #- expect: branch-frozen
        target.load_state_dict(policy.state_dict())  #-
    #+ due = learn_step % 3 == 0
    #+ with torch.no_grad():
    #+     for t, p in zip(target.parameters(), policy.parameters()):
    #+         t.copy_(torch.where(due, p, t))
    learn_step += 1  #- expect: host-counter
    #+ learn_step.add_(1)
    q_eval = policy(s).gather(1, a)
    q_target = r + 0.9 * target(s2).detach().max(1)[0].view(-1, 1)
    loss = F.mse_loss(q_eval, q_target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% discounted returns in a list, normalized when there are several -> finish
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(5, 4, device=device), torch.randint(0, 2, (5,), device=device), torch.rand(5, device=device))

def finish(states, actions, rewards):
    R, returns = 0, []
    for r in rewards.tolist()[::-1]:  #- expect: sync-item|copy-to-cpu
    #+ for r in rewards.flip(0):
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns, device=device)  #- may: copy-to-gpu scalar-frozen tensor-literal
    #+ returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    logp = F.log_softmax(net(states), -1).gather(1, actions[:, None]).squeeze(1)
    loss = -(logp * returns).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% PPO epochs over shuffled numpy indices (random) -> update
actor = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(actor.parameters(), lr=0.01)
b_inds = np.arange(8)  #-
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device), torch.randn(8, device=device))

def update(obs, actions, adv):
    for epoch in range(2):
        np.random.shuffle(b_inds)  #- may: host-random
        #+ b_inds = torch.randperm(8, device=device)
        for start in range(0, 8, 4):
            mb = b_inds[start : start + 4]
            logp = F.log_softmax(actor(obs[mb]), -1)  #- expect: cpu-index|copy-to-gpu|host-random may: cpu-index copy-to-gpu host-random
            #+ logp = F.log_softmax(actor(obs[mb]), -1)
            loss = -(logp.gather(1, actions[mb][:, None]).squeeze(1) * adv[mb]).mean()  # may: cpu-index copy-to-gpu host-random
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.detach()
# %% the KL to the old policy adapts its coefficient -> ppo_update
pi = nn.Linear(3, 2).to(device)
opt = torch.optim.SGD(pi.parameters(), lr=0.1)
beta = 1.0  #-
#+ beta = torch.ones((), device=device)
args = (torch.randn(6, 3, device=device), torch.randn(6, 2, device=device).log_softmax(-1))

def ppo_update(obs, old_logp):
    global beta  #-
    logp = F.log_softmax(pi(obs), -1)
    kl = (old_logp.exp() * (old_logp - logp)).sum(-1).mean()
    loss = -logp[:, 0].mean() + beta * kl  #- expect: scalar-frozen
    #+ loss = -logp[:, 0].mean() + beta * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
    if kl > 0.02:  #- expect: data-dependent-branch
        beta *= 1.5  #- may: host-counter
    elif kl < 0.005:  #- may: data-dependent-branch branch-frozen
        beta /= 1.5  #-
    #+ beta.copy_(torch.where(kl > 0.02, beta * 1.5, torch.where(kl < 0.005, beta / 1.5, beta)))
    return loss.detach()
# %% a vectorized environment resets those that are done -> env_step
state = torch.zeros(6, 3, device=device)
lengths = torch.zeros(6, device=device)
finished = []
args = (torch.randn(6, 3, device=device),)

def env_step(action):
    state.add_(action * 0.1)
    lengths.add_(1)
    done = state.norm(dim=1) > 0.3
    if done.any():  #- expect: data-dependent-branch
        finished.append(lengths[done].mean().item())  #- may: sync-item dynamic-shape host-counter
        state[done] = 0.0  #- may: copy-to-gpu
        lengths[done] = 0  #- may: copy-to-gpu
    #+ mean = torch.where(done, lengths, 0).sum() / done.sum()
    #+ state.copy_(torch.where(done[:, None], 0.0, state))
    #+ lengths.copy_(torch.where(done, 0, lengths))
    return state.sum()  #-
    #+ return state.sum(), mean
#+ def seen(out):
#+     return out[0]
#+ def after(out, i):
#+     if not math.isnan(out[1]):
#+         finished.append(out[1].item())
# %% running observation statistics with a Python count -> normalize
mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
count = 1e-4  #-
#+ count = torch.full((), 1e-4, device=device)
args = (torch.randn(8, 3, device=device),)

def normalize(x):
    global mean, var, count  #-
    b_mean, b_var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
    delta = b_mean - mean  #- expect: stale-input
    #+ delta = b_mean - mean
    tot = count + n  #-
    #+ tot = count + n
    new_mean = mean + delta * n / tot  #- expect: scalar-frozen may: stale-input
    #+ new_mean = mean + delta * n / tot
    m2 = var * count + b_var * n + delta ** 2 * count * n / tot  #- expect: scalar-frozen stale-input
    #+ m2 = var * count + b_var * n + delta ** 2 * count * n / tot
    mean, var, count = new_mean, m2 / tot, tot  #- may: host-counter stale-input scalar-frozen
    #+ mean.copy_(new_mean)
    #+ var.copy_(m2 / tot)
    #+ count.copy_(tot)
    return (x - mean) / torch.sqrt(var + 1e-8)  # may: stale-input
# %% actions of a squashed Gaussian with a log probability (random) -> sample
net = nn.Linear(4, 4).to(device)
args = (torch.randn(5, 4, device=device),)

def sample(obs):
    mu, log_std = net(obs).chunk(2, -1)
    dist = torch.distributions.Normal(mu, log_std.clamp(-5, 2).exp())  #- expect: argument-check
    #+ dist = torch.distributions.Normal(mu, log_std.clamp(-5, 2).exp(), validate_args=False)
    u = dist.rsample()
    a = torch.tanh(u)
    logp = dist.log_prob(u).sum(-1) - torch.log(1 - a.pow(2) + 1e-6).sum(-1)  #- expect: argument-check
    #+ logp = dist.log_prob(u).sum(-1) - torch.log(1 - a.pow(2) + 1e-6).sum(-1)
    return a, logp
# %% the temperature is read for the log and used as a number -> alpha_step
log_alpha = torch.zeros(1, device=device, requires_grad=True)
opt = torch.optim.SGD([log_alpha], lr=0.1)
args = (torch.randn(6, device=device), torch.randn(6, device=device))

def alpha_step(logp, q):
    alpha = log_alpha.exp().item()  #- expect: sync-item
    #+ alpha = log_alpha.exp().detach()
    actor_loss = (alpha * logp - q).mean()
    alpha_loss = -(log_alpha * (logp + 2.0).detach()).mean()
    opt.zero_grad()
    alpha_loss.backward()
    opt.step()
    return actor_loss, alpha_loss.detach()
# %% priorities are written at indices, the largest is kept as a number -> set_priorities
prios = torch.zeros(16, device=device)
max_prio = 1.0  #-
#+ max_prio = torch.ones((), device=device)
args = (torch.randint(0, 16, (4,), device=device), torch.rand(4, device=device) * 3)

def set_priorities(idx, td):
    global max_prio  #-
    p = (td.abs() + 1e-5) ** 0.6
    prios.index_copy_(0, idx, p)
    max_prio = max(max_prio, p.max().item())  #- expect: sync-item may: host-counter
    #+ max_prio.copy_(torch.maximum(max_prio, p.max()))
    return prios / max_prio  #- may: scalar-frozen
    #+ return prios / max_prio
