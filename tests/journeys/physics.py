# %% a physics-informed network for Burgers' equation, with an annealed weight -> step
class PINN(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.lb = torch.tensor([-1.0, 0.0])
        self.ub = torch.tensor([1.0, 1.0])

    def forward(self, x, t):
        z = torch.cat([x, t], dim=1)
        z = 2.0 * (z - self.lb.to(z.device)) / (self.ub.to(z.device) - self.lb.to(z.device)) - 1.0
        return self.net(z)


net = PINN().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.999)
nu = 0.01 / math.pi
lam = 1.0 #-
#+ lam = torch.tensor(1.0, device=device)
log = {"pde": [], "bc": []}
best = float("inf")


def residual(x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = net(x, t)
    u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
    u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0]
    return u_t + u * u_x - nu * u_xx


def step(x_f, t_f, x_b, t_b, u_b):
    global lam, best
    opt.zero_grad()
    f = residual(x_f, t_f)
    loss_f = (f ** 2).mean()
    loss_b = F.mse_loss(net(x_b, t_b), u_b)
    if loss_f.item() > 10 * loss_b.item(): #-
        lam = min(lam * 1.01, 10.0) #-
    #+ lam.copy_(torch.where(loss_f > 10 * loss_b, (lam * 1.01).clamp(max=10.0), lam))
    loss = loss_f + lam * loss_b
    loss.backward()
    opt.step()
    sched.step()
    log["pde"].append(loss_f.item())
    log["bc"].append(loss_b.item())
    if loss.item() < best:
        best = loss.item()
    return loss


args = (
    torch.rand(32, 1, device=device) * 2 - 1,
    torch.rand(32, 1, device=device),
    torch.rand(8, 1, device=device) * 2 - 1,
    torch.zeros(8, 1, device=device),
    torch.randn(8, 1, device=device),
)
