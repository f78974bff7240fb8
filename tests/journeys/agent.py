# %% an agent with a target network, a schedule of its exploration and priorities -> learn
class Dueling(nn.Module):
    def __init__(self, obs=6, actions=3, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, actions)

    def forward(self, x):
        h = self.body(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Agent:
    def __init__(self):
        self.q, self.target = Dueling().to(device), Dueling().to(device)
        self.target.load_state_dict(self.q.state_dict())
        self.optim = torch.optim.RMSprop(self.q.parameters(), lr=1e-3)
        self.gamma, self.beta, self.updates = 0.99, 0.4, 0
        self.priorities = np.ones(8, dtype=np.float32)
        self.losses = []

    def sync_target(self, tau=0.05):
        for p, t in zip(self.q.parameters(), self.target.parameters()):
            t.data.copy_(tau * p.data + (1 - tau) * t.data)

    def learn(self, obs, action, reward, next_obs, done):
        self.updates += 1
        self.beta = min(1.0, self.beta + 0.01)
        weights = torch.as_tensor(self.priorities, device=device) ** -self.beta
        weights = weights / weights.max()
        with torch.no_grad():
            best = self.q(next_obs).argmax(1, keepdim=True)
            future = self.target(next_obs).gather(1, best).squeeze(1)
            goal = reward + self.gamma * future * (1 - done)
        value = self.q(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        error = goal - value
        loss = (weights * F.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.optim.zero_grad()
        loss.backward()
        for p in self.q.parameters():
            p.grad.data.clamp_(-1, 1)
        self.optim.step()
        self.sync_target()
        self.priorities[:] = error.abs().detach().cpu().numpy() + 1e-3
        self.losses.append(float(loss))
        return loss


agent = Agent()
learn = agent.learn
args = (
    torch.randn(8, 6, device=device),
    torch.randint(0, 3, (8,), device=device),
    torch.randn(8, device=device),
    torch.randn(8, 6, device=device),
    torch.randint(0, 2, (8,), device=device).float(),
)
