# %% the residual of a differential equation -> train_step
net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.rand(6, 1, device=device), torch.rand(6, 1, device=device))

def train_step(x, t):
    x, t = x.detach().requires_grad_(True), t.detach().requires_grad_(True)
    u = net(torch.cat([x, t], dim=1))
    ones = torch.ones_like(u)
    u_x, u_t = torch.autograd.grad(u, (x, t), grad_outputs=ones, create_graph=True)
    u_xx, = torch.autograd.grad(u_x, x, grad_outputs=ones, create_graph=True)
    loss = (u_t + u * u_x - 0.01 * u_xx).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
# %% an adaptive step size -> integrate
args = (torch.rand(4, device=device),)

def f(y):
    return -2.0 * y

def integrate(y):
    t, h, tries = 0.0, 0.4, 0  #-
    #+ t, h = torch.zeros((), device=y.device), torch.full((), 0.4, device=y.device)
    #+ for _ in range(16):
    while t < 1.0 and tries < 16:  #- may: branch-frozen data-dependent-branch
        full = y + h * f(y)
        half = y + h / 2 * f(y)
        better = half + h / 2 * f(half)
        error = (better - full).abs().max().item()  #- expect: sync-item
        if error < 0.05:  #- may: branch-frozen data-dependent-branch
            y, t = better, t + h  #-
        else:  #-
            h = h / 2  #-
        tries += 1  #-
        #+ error = (better - full).abs().max()
        #+ accept, running = error < 0.05, t < 1.0
        #+ y = torch.where(accept & running, better, y)
        #+ t, h = torch.where(accept & running, t + h, t), torch.where(~accept & running, h / 2, h)
    return y
# %% conjugate gradients until convergence -> solve
torch.manual_seed(1)
_half = torch.randn(5, 5, device=device)
A = _half @ _half.t() + 5 * torch.eye(5, device=device)
args = (torch.randn(5, device=device),)

def solve(b):
    x, r = torch.zeros_like(b), b.clone()
    p, rs = r, r @ r
    for _ in range(5):
        Ap = A @ p
        alpha = rs / (p @ Ap)
        x, r = x + alpha * p, r - alpha * Ap
        new = r @ r
        if torch.sqrt(new) < 1e-6:  #- expect: data-dependent-branch
            break  #-
        p, rs = r + new / rs * p, new
    return x
# %% a Kalman filter -> update
H = torch.randn(2, 4, device=device)
R = 0.1 * torch.eye(2, device=device)
_root = torch.randn(4, 4, device=device)
P0 = _root @ _root.t() + torch.eye(4, device=device)
args = (torch.randn(4, device=device), torch.randn(2, device=device))

def update(mean, z):
    S = H @ P0 @ H.T + R
    K = P0 @ H.T @ torch.linalg.inv(S)  #- expect: linalg-check
    #+ K = P0 @ H.T @ torch.linalg.inv_ex(S)[0]
    innovation = z - H @ mean
    weighted = torch.linalg.solve(S, innovation)  #- expect: linalg-check
    #+ weighted = torch.linalg.solve_ex(S, innovation)[0]
    return mean + K @ innovation, innovation @ weighted
# %% the marginal likelihood of a Gaussian process -> nll
log_scale = torch.zeros((), device=device, requires_grad=True)
args = (torch.linspace(0, 1, 6, device=device), torch.randn(6, device=device))

def feed(i):
    return torch.linspace(0, 1 + i / 10, 6, device=device), torch.linspace(-1, 1, 6, device=device) * (i + 1)

def chol(K, jitter=1e-3):
    K = K + jitter * torch.eye(K.size(0), device=K.device)
    #+ return torch.linalg.cholesky_ex(K).L
    try:  #-
        return torch.linalg.cholesky(K)  #- expect: linalg-check
    except RuntimeError:  #-
        return chol(K, jitter * 10)  #-

def nll(x, y):
    K = torch.exp(-0.5 * (x[:, None] - x[None]) ** 2 / log_scale.exp())
    L = chol(K)
    alpha = torch.cholesky_solve(y[:, None], L)
    return (0.5 * y @ alpha.squeeze(1) + L.diagonal().log().sum()).detach()
# %% entropic optimal transport -> sinkhorn
args = (torch.rand(5, 2, device=device), torch.rand(6, 2, device=device))

def sinkhorn(x, y, eps=0.1, iterations=10):
    cost = torch.cdist(x, y).square()
    f, g = torch.zeros(5, device=x.device), torch.zeros(6, device=x.device)
    log_a, log_b = -math.log(5), -math.log(6)
    for _ in range(iterations):
        f = eps * (log_a - torch.logsumexp((g[None, :] - cost) / eps, dim=1))
        g = eps * (log_b - torch.logsumexp((f[:, None] - cost) / eps, dim=0))
    plan = torch.exp((f[:, None] + g[None, :] - cost) / eps)
    return (plan * cost).sum()
# %% a particle filter that resamples when it must (random) -> filter_step
particles = torch.randn(10, 2, device=device)
weights = torch.full((10,), 0.1, device=device)
args = (torch.randn(2, device=device),)

@torch.no_grad()
def filter_step(z):
    particles.add_(0.1 * torch.randn_like(particles))
    weights.mul_(torch.exp(-(particles - z).square().sum(1)))
    weights.div_(weights.sum())
    if 1.0 / weights.square().sum() < 5:  #- expect: data-dependent-branch
        index = torch.multinomial(weights, 10, replacement=True)  #-
        particles.copy_(particles[index])  #-
        weights.fill_(0.1)  #-
    #+ degenerate = 1.0 / weights.square().sum() < 5
    #+ index = torch.multinomial(weights, 10, replacement=True)
    #+ particles.copy_(torch.where(degenerate, particles[index], particles))
    #+ weights.copy_(torch.where(degenerate, 0.1, weights))
    return (weights[:, None] * particles).sum(0)
# %% convolution by Fourier transform -> convolve
kernel = torch.randn(9, device=device)
args = (torch.randn(3, 32, device=device),)

def convolve(x):
    n = x.size(-1) + kernel.size(0) - 1
    spectrum = torch.fft.rfft(x, n=n) * torch.fft.rfft(kernel, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., : x.size(-1)]
# %% the step size decays in a closure -> descend
def make_descent(start):
    rate = start  #-
    #+ rate = torch.full((), start, device=device)
    def step(x):
        nonlocal rate  #-
        gradient = 2 * (x - 1.0)
        y = x - rate * gradient  # expect: scalar-frozen
        rate *= 0.9  #- expect: host-counter
        #+ rate.mul_(0.9)
        return y
    return step

descend = make_descent(0.3)
args = (torch.randn(4, device=device),)
