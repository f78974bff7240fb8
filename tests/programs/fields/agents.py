# %% a replay buffer in a deque (random) -> learn
from collections import deque
_buffer = deque(((np.random.randn(4).astype(np.float32), i % 2, float(i)) for i in range(20)), maxlen=20)
q_net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(q_net.parameters(), lr=0.01)
args = ()  #-
#+ args = (torch.randn(6, 4, device=device), torch.randint(0, 2, (6,), device=device), torch.randn(6, device=device))

def learn():  #-
#+ def learn(obs, actions, rewards):
    batch = random.sample(_buffer, 6)  #- may: host-random
    obs = torch.from_numpy(np.stack([b[0] for b in batch])).to(device)  #- expect: copy-to-gpu may: host-random
    actions = torch.tensor([b[1] for b in batch], device=device)  #- expect: tensor-literal may: host-random
    rewards = torch.tensor([b[2] for b in batch], device=device)  #- expect: tensor-literal may: host-random
    q = q_net(obs).gather(1, actions[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, rewards)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% a rollout in an environment on the device -> rollout
steps, envs = 4, 3
obs_buf = torch.zeros(steps, envs, 4, device=device)
act_buf = torch.zeros(steps, envs, dtype=torch.long, device=device)
logp_buf = torch.zeros(steps, envs, device=device)
policy = nn.Linear(4, 3).to(device)
state = torch.randn(envs, 4, device=device)
args = ()

@torch.no_grad()
def rollout():
    for t in range(steps):
        obs_buf[t] = state
        dist = torch.distributions.Categorical(logits=policy(state), validate_args=False)
        action = dist.sample()
        act_buf[t] = action
        logp_buf[t] = dist.log_prob(action)
        state.mul_(0.9).add_(0.1 * (action[:, None] - 1.0))
    return dist.entropy().mean()
# %% running reward statistics as Python floats -> shaped
class Running:
    def __init__(self):
        self.mean, self.count = 0.0, 1e-4  #-
        #+ self.mean, self.count = torch.zeros((), device=device), torch.full((), 1e-4, device=device)
    def update(self, x):
        batch_mean = x.mean().item()  #- expect: sync-item
        #+ batch_mean = x.mean()
        self.count += 1  #- expect: host-counter
        self.mean += (batch_mean - self.mean) / self.count  #- expect: host-counter may: sync-item
        #+ self.count.add_(1)
        #+ self.mean.add_((batch_mean - self.mean) / self.count)

running = Running()
args = (torch.rand(6, device=device),)

def shaped(reward):
    running.update(reward)
    return (reward - running.mean) / math.sqrt(2.0)  # expect: scalar-frozen
# %% relabel goals in hindsight (random) -> relabel
achieved = torch.randn(10, 2, device=device)
args = (torch.randn(8, 2, device=device),)

def relabel(goals):
    goals = goals.clone()
    her = torch.rand(goals.size(0), device=goals.device) < 0.8
    future = torch.randint(0, 10, (goals.size(0),), device=goals.device)
    goals[her] = achieved[future[her]]  #- expect: mask-assignment|dynamic-shape may: dynamic-shape mask-assignment
    #+ goals = torch.where(her[:, None], achieved[future], goals)
    return goals
# %% a context of the last states in a deque -> act
from collections import deque
_context = deque([torch.zeros(2, 3, device=device) for _ in range(4)], maxlen=4)  #-
#+ context = torch.zeros(2, 4, 3, device=device)
actor = nn.Linear(12, 2).to(device)
args = (torch.randn(2, 3, device=device),)

@torch.no_grad()
def act(state):
    _context.append(state.clone())  #- expect: host-counter|output-alias
    seq = torch.stack(list(_context), dim=1)  #- expect: stale-input
    #+ context.copy_(torch.cat([context[:, 1:], state[:, None]], dim=1))
    #+ seq = context
    return actor(seq.flatten(1))
# %% simulate until every episode is over -> simulate
args = (torch.rand(5, device=device),)

def simulate(x):
    steps = torch.zeros_like(x)
    done = torch.zeros_like(x, dtype=torch.bool)
    while not done.all():  #- expect: data-dependent-branch
    #+ for _ in range(12):
        x = torch.where(done, x, x * 1.5 + 0.05)
        steps = steps + (~done)
        done = done | (x > 1.0)
    return steps
# %% soft actor-critic, done for capture -> update
def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)).to(device)

actor, critic, target = mlp(4, 4), mlp(6, 1), mlp(6, 1)
target.load_state_dict(critic.state_dict())
log_alpha = torch.zeros((), device=device, requires_grad=True)
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4, capturable=True)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-4, capturable=True)
alpha_opt = torch.optim.Adam([log_alpha], lr=3e-4, capturable=True)
args = (torch.randn(5, 4, device=device), torch.randn(5, 2, device=device), torch.randn(5, 1, device=device), torch.randn(5, 4, device=device))

def policy(obs):
    mean, log_std = actor(obs).chunk(2, dim=-1)
    dist = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
    raw = dist.rsample()
    action = torch.tanh(raw)
    logp = (dist.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1, keepdim=True)
    return action, logp

def update(obs, action, reward, next_obs):
    with torch.no_grad():
        next_action, next_logp = policy(next_obs)
        q = target(torch.cat([next_obs, next_action], -1)) - log_alpha.exp() * next_logp
        y = reward + 0.99 * q
    critic_loss = F.mse_loss(critic(torch.cat([obs, action], -1)), y)
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    new_action, logp = policy(obs)
    actor_loss = (log_alpha.exp().detach() * logp - critic(torch.cat([obs, new_action], -1))).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()
    alpha_loss = -(log_alpha * (logp.detach() - 2.0)).mean()
    alpha_opt.zero_grad()
    alpha_loss.backward()
    alpha_opt.step()
    with torch.no_grad():
        for p, tp in zip(critic.parameters(), target.parameters()):
            tp.lerp_(p, 0.005)
    return critic_loss.detach(), actor_loss.detach()
# %% a Gaussian policy that checks its arguments -> log_prob
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device), torch.randn(3, 2, device=device))

def log_prob(obs, action):
    mean, log_std = net(obs).chunk(2, dim=-1)
    dist = torch.distributions.Normal(mean, log_std.exp())  #- expect: argument-check|data-dependent-branch
    #+ dist = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
    return dist.log_prob(action).sum(-1).detach()  # expect: argument-check|data-dependent-branch
