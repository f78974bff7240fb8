# %% a numpy environment between two forward passes -> rollout
class Pendulum:
    def __init__(self):
        self.state = np.array([0.1, 0.0], dtype=np.float32)
    def step(self, action):
        th, om = self.state
        om = om + 0.05 * (-np.sin(th) + float(action))  #- may: sync-item
        self.state = np.array([th + 0.05 * om, om], dtype=np.float32)  #- may: host-counter
        return self.state, -abs(th)

env, policy = Pendulum(), nn.Linear(2, 1).to(device)
args = (torch.zeros(2, device=device),)
ignore = {"result"}

@torch.no_grad()
def rollout(obs):
    total = 0.0  #-
    for _ in range(2):  #-
        action = policy(obs).cpu().numpy()[0]  #- expect: copy-to-cpu
        state, reward = env.step(action)  #-
        obs = torch.as_tensor(state, device=device)  #- expect: copy-to-gpu|tensor-literal
        total += reward  #-
    #+ obs = policy(obs)
    return obs
# %% epsilon-greedy with a random branch -> act
q = nn.Linear(3, 4).to(device)
epsilon = 0.5
args = (torch.randn(3, device=device),)
ignore = {"result"}

class Agent:
    def explore(self):
        return random.random() < epsilon
    def act(self, obs):
        if self.explore():  #- expect: branch-frozen|host-random may: host-random
            return torch.randint(0, 4, (), device=obs.device)  #-
        return q(obs).argmax()  #- may: branch-frozen
        #+ greedy = torch.rand((), device=obs.device) >= epsilon
        #+ return torch.where(greedy, q(obs).argmax(), torch.randint(0, 4, (), device=obs.device))

agent = Agent()
@torch.no_grad()
def act(obs):
    return agent.act(obs)
# %% a replay buffer on the device sampled by a device index, clean -> dqn_step
obs_buf, act_buf, rew_buf = torch.randn(20, 3).to(device), torch.randint(0, 2, (20,)).to(device), torch.randn(20).to(device)
q, target = nn.Linear(3, 2).to(device), nn.Linear(3, 2).to(device).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-3, capturable=True)
args = (torch.randint(0, 20, (6,), device=device),)

def dqn_step(idx):
    o, a, r = obs_buf[idx], act_buf[idx], rew_buf[idx]
    value = q(o).gather(1, a[:, None]).squeeze(1)
    with torch.no_grad():
        goal = r + 0.99 * target(o).max(1).values
    loss = F.smooth_l1_loss(value, goal)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 1.0)
    opt.step()
    return loss.detach()
# %% the same buffer sampled by numpy -> dqn_sample
obs_buf = torch.randn(20, 3).to(device)
q = nn.Linear(3, 2).to(device)
rng = np.random.default_rng(0)
args = (torch.ones((), device=device),)
ignore = {"result"}

class Buffer:
    def sample(self, n):
        idx = rng.integers(0, 20, n)  #- may: host-random host-counter
        return obs_buf[idx]  #- expect: cpu-index|host-random may: host-random
        #+ return obs_buf[torch.randint(0, 20, (n,), device=device)]

buffer = Buffer()
@torch.no_grad()
def dqn_sample(scale):
    return q(buffer.sample(4)) * scale
# %% an actor update every second step -> td3_step
actor, critic = nn.Linear(3, 1).to(device), nn.Linear(4, 1).to(device)
a_opt = torch.optim.SGD(actor.parameters(), lr=0.01)
c_opt = torch.optim.SGD(critic.parameters(), lr=0.01)
class Learner:
    updates = 0
learner = Learner()
args = (torch.randn(4, 3, device=device), torch.randn(4, 1, device=device))
ignore = {"actor", "critic", "result"}

def td3_step(o, target):
    c_loss = F.mse_loss(critic(torch.cat([o, actor(o).detach()], 1)), target)
    c_opt.zero_grad()
    c_loss.backward()
    c_opt.step()
    learner.updates += 1  #- expect: host-counter
    if learner.updates % 2:  #- expect: branch-frozen
        return c_loss.detach(), torch.zeros((), device=o.device)  #-
    a_loss = -critic(torch.cat([o, actor(o)], 1)).mean()  #- may: branch-frozen
    #+ a_loss = -critic(torch.cat([o, actor(o)], 1)).mean()
    a_opt.zero_grad(set_to_none=False)
    a_loss.backward()
    a_opt.step()
    return c_loss.detach(), a_loss.detach()
# %% advantage estimates by a backward loop over device tensors, clean -> gae
args = (torch.randn(5, 3, device=device), torch.randn(6, 3, device=device), torch.randint(0, 2, (5, 3), device=device).float())

def gae(rewards, values, dones, gamma=0.99, lam=0.95):
    adv, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.size(0))):
        delta = rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]
        last = delta + gamma * lam * (1 - dones[t]) * last
        adv[t] = last
    return (adv - adv.mean()) / (adv.std() + 1e-8)
# %% farthest point sampling reads each index -> sample_points
args = (torch.randn(8, 3, device=device),)

def farthest(points, k):
    chosen = [0]  #-
    #+ chosen = [torch.zeros(1, dtype=torch.long, device=device)]
    dist = torch.full((points.size(0),), float("inf"), device=points.device)
    for _ in range(k - 1):
        d = (points - points[chosen[-1]]).square().sum(-1)  #- may: size-frozen scalar-frozen
        #+ d = (points - points.index_select(0, chosen[-1])).square().sum(-1)
        dist = torch.minimum(dist, d)
        chosen.append(dist.argmax().item())  #- expect: sync-item
        #+ chosen.append(dist.argmax().reshape(1))
    return chosen  #-
    #+ return torch.cat(chosen)
def sample_points(points):
    return points[farthest(points, 3)]  #- expect: cpu-index
    #+ return points[farthest(points, 3)]
# %% voxel ids are made unique before pooling -> voxelize
args = (torch.rand(10, 3, device=device), torch.randn(10, 4, device=device))
ignore = {"result"}

def voxel_ids(xyz, size=0.5):
    grid = (xyz / size).floor().long()
    return grid[:, 0] * 4 + grid[:, 1] * 2 + grid[:, 2]

def voxelize(xyz, feats):
    ids, inverse, counts = voxel_ids(xyz).unique(return_inverse=True, return_counts=True)  #- expect: dynamic-shape
    pooled = torch.zeros(len(ids), 4, device=feats.device)  #- may: size-frozen
    #+ inverse = voxel_ids(xyz)
    #+ pooled = torch.zeros(8, 4, device=feats.device)
    return pooled.index_add_(0, inverse, feats)  #- may: size-frozen
    #+ return pooled.index_add_(0, inverse, feats)
# %% an ICP loop that stops when the error is small -> align
args = (torch.randn(6, 2, device=device), torch.randn(6, 2, device=device))
ignore = {"result"}

def correspond(a, b):
    return b[torch.cdist(a, b).argmin(1)]

def align(src, dst):
    prev = float("inf")  #-
    for _ in range(3):
        near = correspond(src, dst)
        shift = (near - src).mean(0)
        src = src + shift
        err = (near - src).square().mean()
        if abs(prev - err.item()) < 1e-9:  #- expect: sync-item
            break  #-
        prev = err.item()  #- expect: sync-item
    return src
# %% quaternions from a batch of angles, clean -> rotate
args = (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device))

def quat(axis_angle):
    angle = axis_angle.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return torch.cat([(angle / 2).cos(), axis_angle / angle * (angle / 2).sin()], -1)

def rotate(aa, v):
    q = quat(aa)
    w, u = q[:, :1], q[:, 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)
