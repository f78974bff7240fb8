# %% one step of a pole that numpy simulates -> play
class Pole:
    def __init__(self, n=4):
        self.state = np.zeros((n, 4), dtype=np.float32)
    def step(self, action):
        self.state = self.state * 0.9 + (action[:, None] - 0.5).astype(np.float32) * 0.1  # may: host-counter
        return self.state, 1.0 - np.abs(self.state).sum(1)

env = Pole()
policy = nn.Linear(4, 2).to(device)
args = (torch.zeros(4, 4, device=device),)

@torch.no_grad()
def play(obs):
    action = policy(obs).argmax(-1)
    next_obs, reward = env.step(action.cpu().numpy())  #- expect: copy-to-cpu
    obs = torch.from_numpy(next_obs).to(device)  #- expect: copy-to-gpu
    return obs, torch.as_tensor(reward, dtype=torch.float32, device=device)  #- expect: copy-to-gpu|tensor-literal
    #+ return action
#+ ignore = {"result"}
# %% exploration noise that remembers itself -> act
class OUNoise:
    def __init__(self, size, theta=0.15, sigma=0.2):
        self.x, self.theta, self.sigma = np.zeros(size), theta, sigma  #-
        #+ self.x, self.theta, self.sigma = torch.zeros(size, device=device), theta, sigma
    def __call__(self):
        self.x = self.x - self.theta * self.x + self.sigma * np.random.randn(*self.x.shape)  #- may: host-counter host-random
        #+ self.x.mul_(1 - self.theta).add_(self.sigma * torch.randn_like(self.x))
        return self.x

noise = OUNoise(2)
actor = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(device)
args = (torch.randn(3, device=device),)
ignore = {"result"}

@torch.no_grad()
def act(obs):
    action = actor(obs) + torch.as_tensor(noise(), dtype=torch.float32, device=device)  #- expect: copy-to-gpu|tensor-literal may: host-random
    #+ action = actor(obs) + noise()
    return action.clamp(-1, 1)
# %% a replay memory with a pointer -> push
capacity, ptr, full = 8, 0, False  #-
#+ capacity, ptr = 8, torch.zeros(1, dtype=torch.long, device=device)
states, rewards = torch.zeros(capacity, 4, device=device), torch.zeros(capacity, device=device)
args = (torch.randn(4, device=device), torch.randn((), device=device))
ignore = {"ptr", "full"}

def push(state, reward):
    global ptr, full  #-
    states[ptr] = state  #- expect: size-frozen|scalar-frozen|stale-input
    rewards[ptr] = reward  #- expect: size-frozen|scalar-frozen|stale-input
    full = full or ptr == capacity - 1  #- may: host-counter
    ptr = (ptr + 1) % capacity  #- expect: host-counter
    #+ states.index_copy_(0, ptr, state[None])
    #+ rewards.index_copy_(0, ptr, reward[None])
    #+ ptr.add_(1).remainder_(capacity)
    return rewards.mean()
# %% draw transitions by priority on the device -> sample
priorities, storage = torch.rand(32, device=device), torch.randn(32, 4, device=device)
args = (torch.full((), 0.6, device=device),)

def sample(alpha):
    p = priorities.pow(alpha)
    p = p / p.sum()
    idx = torch.multinomial(p, 8, replacement=True)
    weights = (32 * p[idx]).pow(-0.4)
    return storage[idx], weights / weights.max()
# %% explore with a draw of torch's on the CPU (random) -> select_action
policy_net = nn.Linear(4, 3).to(device)
EPS = 0.5
args = (torch.randn(1, 4, device=device),)

@torch.no_grad()
def select_action(state):
    #+ greedy = policy_net(state).max(1).indices.view(1, 1)
    #+ chance = torch.randint(0, 3, (1, 1), device=device)
    #+ return torch.where(torch.rand(1, 1, device=device) > EPS, greedy, chance)
    if torch.rand(1).item() > EPS:  #- expect: branch-frozen|host-random
        return policy_net(state).max(1).indices.view(1, 1)  #-
    return torch.tensor([[random.randrange(3)]], device=device)  #- may: tensor-literal host-random copy-to-gpu
# %% discounted returns through a list -> policy_loss
gamma = 0.9
policy = nn.Linear(4, 2).to(device)
args = (torch.randn(5, 4, device=device), torch.randn(5, device=device))

def policy_loss(obs, rewards):
    returns, R = [], 0.0  #-
    for r in reversed(rewards.tolist()):  #- expect: copy-to-cpu
        R = r + gamma * R  #-
        returns.insert(0, R)  #-
    returns = torch.tensor(returns, device=obs.device)  #- expect: tensor-literal|copy-to-gpu may: cpu-scalar-frozen
    #+ returns, R = [], torch.zeros((), device=obs.device)
    #+ for r in reversed(rewards.unbind()):
    #+     R = r + gamma * R
    #+     returns.insert(0, R)
    #+ returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    return -(policy(obs).log_softmax(-1)[:, 0] * returns).mean()
# %% epochs of PPO that end at a divergence -> update
actor = nn.Linear(4, 2).to(device)
opt = torch.optim.Adam(actor.parameters(), lr=1e-3, capturable=True)
target_kl = 10.0
args = (torch.randn(8, 4, device=device), torch.full((8,), -0.7, device=device), torch.randn(8, device=device))

def update(obs, old_logp, adv):
    for epoch in range(3):
        logp = actor(obs).log_softmax(-1)[:, 0]
        ratio = (logp - old_logp).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        kl = (old_logp - logp).mean()
        if kl.item() > 1.5 * target_kl:  #- expect: sync-item|data-dependent-branch
            break  #-
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
# %% many environments at once on the device -> env_step
position, velocity = torch.zeros(16, device=device), torch.zeros(16, device=device)
policy = nn.Linear(2, 1).to(device)
args = (torch.randn(16, device=device),)

@torch.no_grad()
def env_step(push):
    obs = torch.stack([position, velocity], 1)
    force = policy(obs).squeeze(1).tanh() + 0.1 * push
    velocity.add_(0.1 * force)
    position.add_(0.1 * velocity)
    done = position.abs() > 0.05
    reward = 1 - position.abs()
    position.masked_fill_(done, 0.0)
    velocity.copy_(torch.where(done, torch.zeros_like(velocity), velocity))
    return reward, done
# %% reset the environments that ended (random) -> env_step
state = torch.randn(8, 4, device=device)
args = (torch.randn(8, 4, device=device),)
ignore = {"state", "result"}

@torch.no_grad()
def env_step(action):
    state.add_(0.5 * action)
    done = state.norm(dim=1) > 1.5
    if done.any():  #- expect: data-dependent-branch
        state[done] = torch.randn(int(done.sum()), 4, device=device)  #- expect: sync-item mask-assignment may: dynamic-shape
    #+ state.copy_(torch.where(done[:, None], torch.randn(8, 4, device=device), state))
    return -state.square().sum(1)
# %% a running mean and variance with a count in Python -> normalize
class RunningMeanStd:
    def __init__(self, shape):
        self.mean, self.var = torch.zeros(shape, device=device), torch.ones(shape, device=device)
        self.count = 1e-4  #-
        #+ self.count = torch.full((), 1e-4, device=device)
    def update(self, x):
        mean, var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
        delta, total = mean - self.mean, self.count + n
        m2 = self.var * self.count + var * n + delta**2 * self.count * n / total  #- expect: scalar-frozen stale-input
        self.mean = self.mean + delta * n / total  #- expect: stale-input scalar-frozen
        self.var = m2 / total  #- expect: scalar-frozen
        self.count = total  #- expect: host-counter
        #+ m2 = self.var * self.count + var * n + delta**2 * self.count * n / total
        #+ self.mean.add_(delta * n / total)
        #+ self.var.copy_(m2 / total)
        #+ self.count.copy_(total)

rms = RunningMeanStd(4)
args = (torch.randn(8, 4, device=device),)

def normalize(obs):
    rms.update(obs)
    return (obs - rms.mean) / torch.sqrt(rms.var + 1e-8)
# %% target networks by a foreach lerp -> update
q, target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
opt = torch.optim.Adam(q.parameters(), lr=1e-3, capturable=True, foreach=True)
args = (torch.randn(8, 4, device=device), torch.randint(0, 2, (8, 1), device=device), torch.randn(8, device=device))

def update(obs, action, reward):
    with torch.no_grad():
        goal = reward + 0.99 * target(obs).max(1).values
    loss = F.smooth_l1_loss(q(obs).gather(1, action).squeeze(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(q.parameters()), 0.01)
    return loss.detach()
# %% moves that the rules allow -> choose
policy = nn.Linear(4, 6).to(device)
legal = [0, 2, 3]
#+ allowed = torch.zeros(6, dtype=torch.bool).index_fill_(0, torch.tensor(legal), True).to(device)
args = (torch.randn(4, device=device),)

@torch.no_grad()
def choose(board):
    logits = policy(board)
    mask = torch.full_like(logits, float("-inf"))  #-
    mask[legal] = 0.0  #- expect: cpu-index|copy-to-gpu|scalar-assignment may: scalar-assignment cpu-index
    #+ mask = torch.zeros_like(logits).masked_fill_(~allowed, float("-inf"))
    return (logits + mask).softmax(-1)
# %% REINFORCE picks an action -> select_action
from torch.distributions import Categorical
policy = nn.Linear(4, 2).to(device)
args = (torch.randn(1, 4, device=device),)
ignore = {"result"}

def select_action(state):
    probs = F.softmax(policy(state), dim=1)
    m = Categorical(probs)  #- expect: argument-check|data-dependent-branch
    #+ m = Categorical(probs, validate_args=False)
    action = m.sample()
    log_prob = m.log_prob(action)  #- expect: argument-check|data-dependent-branch
    return action.item(), log_prob.detach()  #- expect: sync-item
    #+ return action, m.log_prob(action).detach()
