# %% epsilon-greedy with Python's random (random) -> act
q_network = nn.Linear(4, 3).to(device)
epsilon = 0.3
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def act(obs):
    #+ explore = torch.rand(obs.size(0), device=device) < epsilon
    #+ chance = (torch.rand(obs.size(0), device=device) * 3).long()
    #+ return torch.where(explore, chance, q_network(obs).argmax(1))
    if random.random() < epsilon:  #- expect: branch-frozen|host-random
        return torch.randint(0, 3, (obs.size(0),), device=device)  #-
    return q_network(obs).argmax(dim=1)  #-
# %% sample from a replay buffer on the device (random) -> update
size = 32
observations, rewards = torch.randn(size, 4, device=device), torch.randn(size, device=device)
value = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(value.parameters(), lr=0.01)
args = ()

def update():
    idx = torch.from_numpy(np.random.randint(0, size, 8)).to(device)  #- expect: copy-to-gpu may: host-random
    #+ idx = torch.randint(0, size, (8,), device=device)
    loss = F.mse_loss(value(observations[idx]).squeeze(1), rewards[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
# %% copy the target network every third step -> update
q, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-2, capturable=True)
updates, target_frequency = 0, 3
args = (torch.randn(8, 4, device=device), torch.randn(8, device=device))

def update(obs, reward):
    global updates  #-
    with torch.no_grad():
        td_target = reward + 0.99 * target(obs).max(1).values
    loss = F.mse_loss(q(obs)[:, 0], td_target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1  #- expect: host-counter
    if updates % target_frequency == 0:  #- expect: branch-frozen
        target.load_state_dict(q.state_dict())  #-
    return loss.detach()
#+
#+ def after(loss, i):
#+     global updates
#+     updates += 1
#+     if updates % target_frequency == 0:
#+         target.load_state_dict(q.state_dict())
# %% Polyak averaging -> update
q, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-2, capturable=True)
tau = 0.005
args = (torch.randn(8, 4, device=device), torch.randn(8, device=device), torch.zeros(8, device=device))

def update(obs, reward, done):
    with torch.no_grad():
        td_target = reward + 0.99 * (1 - done) * target(obs).amax(1)
    loss = F.huber_loss(q(obs)[:, 0], td_target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for t, p in zip(target.parameters(), q.parameters()):
        t.data.copy_(tau * p.data + (1.0 - tau) * t.data)
    return loss.detach()
# %% PPO with clip fractions and a KL limit -> minibatch
actor = nn.Linear(4, 2).to(device)
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4, eps=1e-5, capturable=True)
clip_coef, target_kl = 0.2, 10.0
clipfracs = []
args = (torch.randn(8, 4, device=device), torch.zeros(8, device=device), torch.randn(8, device=device))

def minibatch(obs, old_logprob, advantages):
    new_logprob = actor(obs).log_softmax(-1)[:, 0]
    logratio = new_logprob - old_logprob
    ratio = logratio.exp()
    with torch.no_grad():
        approx_kl = ((ratio - 1) - logratio).mean()
        clipfracs.append(((ratio - 1.0).abs() > clip_coef).float().mean().item())  #- expect: sync-item may: host-counter
        #+ clipfrac = ((ratio - 1.0).abs() > clip_coef).float().mean()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    loss = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    optimizer.step()
    if target_kl is not None and approx_kl > target_kl:  #- expect: data-dependent-branch
        print("stop early")  #- may: host-counter
    return loss.detach()  #-
    #+ return loss.detach(), clipfrac, approx_kl

#+ def seen(out):
#+     return out[0]
#+ def after(out, i):
#+     clipfracs.append(out[1].item())
#+     if target_kl is not None and out[2] > target_kl:
#+         print("stop early")
# %% generalized advantage estimation -> gae
gamma, lam, steps = 0.99, 0.95, 6
args = (torch.randn(steps, 3, device=device), torch.randn(steps + 1, 3, device=device), torch.zeros(steps, 3, device=device))

@torch.no_grad()
def gae(rewards, values, dones):
    advantages = torch.zeros_like(rewards)
    lastgaelam = 0
    for t in reversed(range(steps)):
        nextnonterminal = 1.0 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * nextnonterminal - values[t]
        advantages[t] = lastgaelam = delta + gamma * lam * nextnonterminal * lastgaelam
    return advantages, advantages + values[:-1]
# %% SAC with a temperature that is tuned -> update_alpha
log_alpha = torch.zeros(1, requires_grad=True, device=device)
a_optimizer = torch.optim.Adam([log_alpha], lr=1e-2, capturable=True)
actor = nn.Linear(4, 1).to(device)
args = (torch.randn(8, 4, device=device),)
target_entropy = -1.0

def update_alpha(obs):
    with torch.no_grad():
        log_pi = -F.softplus(actor(obs))
    alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
    a_optimizer.zero_grad()
    alpha_loss.backward()
    a_optimizer.step()
    alpha = log_alpha.exp().item()  #- expect: sync-item
    #+ alpha = log_alpha.exp().detach()
    return (alpha * log_pi).mean()  # may: scalar-frozen
# %% a categorical policy -> rollout
policy = nn.Linear(4, 3).to(device)
args = (torch.randn(5, 4, device=device),)

@torch.no_grad()
def rollout(obs):
    dist = torch.distributions.Categorical(logits=policy(obs))  #- expect: data-dependent-branch|argument-check
    #+ dist = torch.distributions.Categorical(logits=policy(obs), validate_args=False)
    action = dist.sample()
    return action, dist.log_prob(action), dist.entropy()  # may: data-dependent-branch argument-check
# %% observations from the environment -> env_step
class Env:
    def __init__(self):
        self.state = np.zeros(4, dtype=np.float32)
    def step(self, action):
        self.state = 0.9 * self.state + 0.1  #- expect: host-counter may: stale-input
        #+ self.state = 0.9 * self.state + 0.1
        return self.state.astype(np.float32)

env = Env()
policy = nn.Linear(4, 2).to(device)
args = (torch.zeros(4, device=device),)
#+ def feed(i):
#+     return (torch.as_tensor(env.step(0)).to(device),)

@torch.no_grad()
def env_step(last):
    obs = env.step(0)  #-
    return policy(torch.as_tensor(obs, device=device)).tanh()  #- expect: tensor-literal|copy-to-gpu
    #+ return policy(last).tanh()
# %% normalize rewards with running statistics -> normalize
class RunningMeanStd:
    def __init__(self):
        self.mean, self.var, self.count = torch.zeros(3, device=device), torch.ones(3, device=device), 1e-4  #-
        #+ self.mean, self.var = torch.zeros(3, device=device), torch.ones(3, device=device)
        #+ self.count = torch.tensor(1e-4, device=device)
    def update(self, x):
        delta = x.mean(0) - self.mean  #-
        #+ delta = x.mean(0) - self.mean
        total = self.count + x.size(0)
        #+ m2 = self.var * self.count + x.var(0, unbiased=False) * x.size(0) + delta**2 * self.count * x.size(0) / total
        #+ self.mean.add_(delta * x.size(0) / total)
        #+ self.var.copy_(m2 / total)
        #+ self.count.copy_(total)
        m2 = self.var * self.count + x.var(0, unbiased=False) * x.size(0) + delta**2 * self.count * x.size(0) / total  #- expect: stale-input|scalar-frozen may: scalar-frozen stale-input
        self.mean = self.mean + delta * x.size(0) / total  #- expect: stale-input may: scalar-frozen
        self.var, self.count = m2 / total, total  #- expect: host-counter may: scalar-frozen

rms = RunningMeanStd()
args = (torch.randn(8, 3, device=device),)
def normalize(x):
    rms.update(x)
    return (x - rms.mean) / torch.sqrt(rms.var + 1e-8)
# %% actions back to the environment -> select_action
actor = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh()).to(device)
noise_scale = 0.1
args = (torch.randn(1, 4, device=device),)

@torch.no_grad()
def select_action(state):
    action = actor(state)
    action = (action + noise_scale * torch.randn_like(action)).clamp(-1, 1)
    return action.cpu().data.numpy().flatten()  #- expect: copy-to-cpu
    #+ return action

def seen(out):
    return torch.as_tensor(out).flatten()
# %% epsilon falls linearly (random) -> act
q = nn.Linear(4, 3).to(device)
global_step = 0  #-
#+ global_step = torch.zeros((), device=device)
args = (torch.randn(2, 4, device=device),)

@torch.no_grad()
def act(obs):
    global global_step  #-
    global_step += 1  #- expect: host-counter
    #+ global_step.add_(1)
    epsilon = max(0.05, 1.0 - global_step / 10)  #-
    #+ epsilon = (1.0 - global_step / 10).clamp(min=0.05)
    explore = torch.rand(2, device=device) < epsilon  # expect: scalar-frozen
    return torch.where(explore, torch.zeros(2, dtype=torch.long, device=device), q(obs).argmax(1))
# %% TD3 delays the policy -> update
actor, critic = nn.Linear(4, 1).to(device), nn.Linear(5, 1).to(device)
a_opt, c_opt = torch.optim.SGD(actor.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.01)
total_it, policy_freq = 0, 2
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def update(state, target_q):
    global total_it  #-
    total_it += 1  #- expect: host-counter
    loss = F.mse_loss(critic(torch.cat([state, actor(state).detach()], 1)), target_q)
    c_opt.zero_grad()
    loss.backward()
    c_opt.step()
    if total_it % policy_freq == 0:  #- expect: branch-frozen
        a_opt.zero_grad()  #- may: gradients-rebound
        (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()  #-
        a_opt.step()  #- may: gradients-rebound
    #+ turn.add_(1)
    #+ a_opt.zero_grad()
    #+ (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
    #+ for p in actor.parameters():
    #+     p.grad = torch.where(turn % policy_freq == 0, p.grad, 0.0)
    #+ a_opt.step()
    return loss.detach()
#+ turn = torch.zeros((), dtype=torch.long, device=device)
ignore = {"total_it"}
# %% prioritized replay with numpy priorities -> learn
priorities = np.ones(16, dtype=np.float32)  #-
#+ priorities = torch.ones(16, device=device)
net = nn.Linear(4, 1).to(device)
args = (torch.randn(4, 4, device=device), torch.randn(4, device=device), torch.tensor([1, 5, 9, 14], device=device))
def feed(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(4, 4, generator=g).to(device), torch.randn(4, generator=g).to(device), torch.tensor([1, 5, 9, 14]).to(device)

@torch.no_grad()
def learn(obs, returns, idx):
    td = returns - net(obs).squeeze(-1)
    priorities[idx.cpu().numpy()] = td.abs().cpu().numpy() + 1e-6  #- expect: copy-to-cpu may: host-counter
    #+ priorities[idx] = td.abs() + 1e-6
    return td
# %% mask the steps after the end of an episode -> returns
args = (torch.randn(6, 3, device=device), (torch.rand(6, 3, device=device) > 0.7))

def returns(rewards, dones):
    alive = torch.ones(3, device=rewards.device)
    total = torch.zeros(3, device=rewards.device)
    for reward, done in zip(rewards, dones):
        total = total + alive * reward
        alive = alive * (~done).float()
        if not alive.any():  #- expect: data-dependent-branch
            break  #-
    return total
# %% random minibatches of a rollout (random) -> epoch
value = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(value.parameters(), lr=0.05)
args = (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))

def epoch(obs, ret):
    inds = np.arange(8)  #-
    np.random.shuffle(inds)  #-
    #+ inds = torch.rand(8, device=device).argsort()
    for start in range(0, 8, 4):
        mb = inds[start : start + 4]
        loss = F.mse_loss(value(obs[mb]), ret[mb])  # expect: cpu-index|copy-to-gpu|host-random may: host-random cpu-index
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
