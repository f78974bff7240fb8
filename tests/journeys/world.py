# %% a world model whose recurrent state is carried on and reset where an episode ends -> observe
class RSSM(nn.Module):
    def __init__(self, obs=6, act=2, stoch=8, deter=16):
        super().__init__()
        self.stoch, self.deter = stoch, deter
        self.inp = nn.Linear(stoch + act, deter)
        self.cell = nn.GRUCell(deter, deter)
        self.prior_net, self.post_net = nn.Linear(deter, 2 * stoch), nn.Linear(deter + obs, 2 * stoch)
        self.decoder = nn.Sequential(nn.Linear(deter + stoch, 32), nn.ELU(), nn.Linear(32, obs))
        self.reward = nn.Linear(deter + stoch, 1)
        self.h = self.z = None

    def dist(self, stats):
        mean, std = stats.chunk(2, -1)
        return torch.distributions.Normal(mean, F.softplus(std) + 0.1)

    def step(self, action, obs, first):
        if self.h is None:
            self.h = torch.zeros(len(obs), self.deter, device=obs.device)
            self.z = torch.zeros(len(obs), self.stoch, device=obs.device)
        if first.any():
            self.h = torch.where(first[:, None], torch.zeros_like(self.h), self.h)
            self.z = torch.where(first[:, None], torch.zeros_like(self.z), self.z)
        self.h = self.cell(F.elu(self.inp(torch.cat([self.z, action], -1))), self.h)
        prior = self.dist(self.prior_net(self.h))
        post = self.dist(self.post_net(torch.cat([self.h, obs], -1)))
        self.z = post.rsample()
        return prior, post, torch.cat([self.h, self.z], -1)

    def detach(self):
        self.h, self.z = self.h.detach(), self.z.detach()


world = RSSM().to(device)
optim = torch.optim.Adam(world.parameters(), lr=3e-4, eps=1e-5)
FREE_NATS = 1.0
stats = {}


def observe(obs, actions, rewards, first):
    kls, losses = [], []
    for t in range(obs.shape[0]):
        prior, post, feat = world.step(actions[t], obs[t], first[t])
        kl = torch.distributions.kl_divergence(post, prior).sum(-1).mean()
        kls.append(max(kl, torch.tensor(FREE_NATS)))
        recon = F.mse_loss(world.decoder(feat), obs[t])
        rew = F.mse_loss(world.reward(feat).squeeze(-1), rewards[t])
        losses.append(recon + rew)
    loss = torch.stack(losses).mean() + 0.1 * torch.stack([k.to(obs.device) for k in kls]).mean()
    optim.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(world.parameters(), 100.0)
    optim.step()
    world.detach()
    stats["loss"] = loss.item()
    stats["kl"] = float(sum(kls) / len(kls))
    stats["grad_norm"] = norm.item()
    return loss


args = (
    torch.randn(5, 3, 6, device=device),
    torch.randn(5, 3, 2, device=device),
    torch.randn(5, 3, device=device),
    torch.rand(5, 3, device=device) < 0.1,
)
