# %% solve a small system in every step -> fit
args = (torch.randn(8, 3, device=device), torch.randn(8, 1, device=device))

def fit(X, y):
    A = X.T @ X + 0.1 * torch.eye(3, device=X.device)
    return torch.linalg.solve(A, X.T @ y)  #- expect: linalg-check
    #+ return torch.linalg.solve_ex(A, X.T @ y).result
# %% the exponential of a matrix -> rotation
args = (torch.randn(3, 3, device=device) * 0.1,)

def rotation(a):
    skew = a - a.T
    return torch.matrix_exp(skew)  #- expect: linalg-host|operation-waits
    #+ term = result = torch.eye(3, device=a.device)
    #+ for k in range(1, 12):
    #+     term = term @ skew / k
    #+     result = result + term
    #+ return result
# %% invert a cumulative distribution -> inverse_cdf
grid = torch.linspace(-3, 3, 16).to(device)
args = (torch.rand(16, device=device) + 0.1, torch.rand(5, device=device))

def inverse_cdf(density, u):
    cdf = density.cumsum(0) / density.sum()
    at = torch.searchsorted(cdf, u).clamp(1, 15)
    low, high = cdf[at - 1], cdf[at]
    weight = (u - low) / (high - low).clamp(min=1e-6)
    return torch.lerp(grid[at - 1], grid[at], weight.clamp(0, 1))
# %% an embedding table whose rows are kept short -> embed
max_norm = 1.0
table = nn.Embedding(6, 4, max_norm=max_norm).to(device)
args = (torch.randint(0, 6, (3,), device=device),)

@torch.no_grad()
def embed(ids):
    return table(ids)
# %% power iteration with a fixed count -> top_eigenvalue
start = torch.ones(4, device=device)
args = (torch.randn(4, 4, device=device),)

def top_eigenvalue(a):
    a, v = a @ a.T, start
    for _ in range(5):
        v = F.normalize(a @ v, dim=0)
    return v @ a @ v
# %% a table of numbers looked up by a Python list -> interpolate
knots = [0.0, 0.5, 1.0]
values = torch.randn(3, device=device)
#+ knots_t = torch.tensor(knots).to(device)
args = (torch.rand(6, device=device),)

def interpolate(x):
    k = torch.tensor(knots, dtype=x.dtype, device=x.device)  #- expect: tensor-literal
    #+ k = knots_t
    i = torch.bucketize(x, k).clamp(1, 2)
    w = (x - k[i - 1]) / (k[i] - k[i - 1])
    return values[i - 1] * (1 - w) + values[i] * w
# %% line search by halving -> search
args = (torch.randn(4, device=device),)

def f(x):
    return (x**2).sum() + x.sin().sum()

def search(x):
    g, t = 2 * x + x.cos(), 1.0
    for _ in range(5):
        if f(x - t * g) < f(x) - 0.3 * t * g.square().sum():  #- expect: data-dependent-branch
            break  #-
        t *= 0.5  #-
    return x - t * g  #-
    #+     better = f(x - t * g) < f(x) - 0.3 * t * g.square().sum()
    #+     done = better if _ == 0 else done | better
    #+     t = torch.where(done, t, 0.5 * t)
    #+ return x - t * g
# %% noise of a fixed seed beside the global generator -> perturb
args = (torch.randn(4, device=device),)
basis = torch.randn(4, generator=torch.Generator().manual_seed(7)).to(device)

def perturb(x):
    noise = torch.randn(4, generator=torch.Generator().manual_seed(7)).to(x.device)  #- expect: copy-to-gpu may: reseeded
    #+ noise = basis
    return x + 0.1 * noise
# %% noise whose deviation is a tensor -> noisy
args = (torch.randn(4, device=device), torch.rand(4, device=device) + 0.1)

def noisy(mean, std):
    return torch.normal(mean, std)  #- expect: argument-check
    #+ return mean + std * torch.randn_like(std)
# %% a Gaussian policy that samples without gradients -> act
actor = nn.Linear(4, 2).to(device)
log_std = nn.Parameter(torch.zeros(2).to(device))
args = (torch.randn(3, 4, device=device),)

@torch.no_grad()
def act(obs):
    dist = torch.distributions.Normal(actor(obs), log_std.exp(), validate_args=False)
    action = dist.sample()  #- expect: argument-check
    #+ action = dist.rsample().detach()
    return action, dist.log_prob(action).sum(-1)
# %% noise whose deviation is a number -> noisy
args = (torch.randn(4, device=device),)

def noisy(mean):
    return torch.normal(mean, 0.5) + torch.empty_like(mean).normal_(0.0, 0.1)
