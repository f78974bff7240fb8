# %% leapfrog steps with a force from autograd -> simulate
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
args = (torch.randn(5, 2, device=device), torch.randn(5, 2, device=device))

def force(q):
    q = q.detach().requires_grad_(True)
    energy = net(q).sum()
    return -torch.autograd.grad(energy, q)[0]

def simulate(q, p, dt=0.1):
    for _ in range(3):
        p = p + dt / 2 * force(q)
        q = q + dt * p
        p = p + dt / 2 * force(q)
    return q, p
# %% the time step grows with the step number -> advance
class Integrator:
    def __init__(self):
        self.dt, self.steps = 0.01, 0  #-
        #+ self.dt, self.steps = torch.full((), 0.01, device=device), 0
    def advance(self, x):
        x = x - self.dt * x  # expect: scalar-frozen
        self.dt = min(self.dt * 1.5, 0.1)  #- expect: host-counter
        self.steps += 1  #- expect: host-counter
        #+ self.dt.mul_(1.5).clamp_(max=0.1)
        return x

integrator = Integrator()
advance = integrator.advance
args = (torch.randn(4, device=device),)
# %% particles that leave the box are dropped -> move
args = (torch.rand(8, 2, device=device), torch.randn(8, 2, device=device))

def move(x, v):
    x = x + 0.3 * v
    inside = ((x > 0) & (x < 1)).all(dim=1)
    x, v = x[inside], v[inside]  #- expect: dynamic-shape may: dynamic-shape
    #+ x, v = x * inside[:, None], v * inside[:, None]
    return x.sum(0), v.sum(0)
# %% Metropolis steps, each accepted by an if (random) -> metropolis
args = (torch.randn(4, device=device),)

def metropolis(x):
    proposal = x + 0.5 * torch.randn_like(x)
    ratio = torch.exp(0.5 * (x.square().sum() - proposal.square().sum()))
    if torch.rand(1, device=x.device) < ratio:  #- expect: data-dependent-branch
        x = proposal  #-
    #+ x = torch.where(torch.rand(1, device=x.device) < ratio, proposal, x)
    return x
# %% a spectral solver on a grid -> burgers_step
k = torch.fft.rfftfreq(16, d=1 / 16).to(device)
dealias = (k < 16 / 3).float()
args = (torch.randn(16, device=device),)

def burgers_step(u, dt=0.01, nu=0.1):
    u_hat = torch.fft.rfft(u)
    u_x = torch.fft.irfft(1j * k * u_hat, n=16)
    nonlinear = torch.fft.rfft(u * u_x) * dealias
    u_hat = (u_hat - dt * nonlinear) / (1 + dt * nu * k**2)
    return torch.fft.irfft(u_hat, n=16)
# %% boundary values from a list of numbers -> apply_boundary
boundary = [0.0, 1.0]
args = (torch.randn(6, 6, device=device),)

def apply_boundary(u):
    u = u.clone()
    u[0, :] = boundary[0]
    u[-1, :] = boundary[1]
    u[:, 0] = torch.tensor(boundary[0])
    u[:, -1] = u[:, -2]
    return u
# %% eigenmodes of a symmetric matrix -> modes
args = (torch.randn(4, 4, device=device),)

def feed(i):
    return (torch.diag(torch.arange(4.0) + i).to(device),)

def modes(a):
    values = torch.linalg.eigvalsh(a + a.T)  #- expect: linalg-check|linalg-host
    return values.max()  #-
    #+ v = torch.ones(4, device=a.device)
    #+ for _ in range(120):
    #+     v = F.normalize((a + a.T) @ v, dim=0)
    #+ return v @ (a + a.T) @ v
# %% check energy and restart -> guarded
energies = []
args = (torch.randn(6, device=device),)

def guarded(x):
    energy = x.square().sum()
    energies.append(energy.cpu())  #- expect: copy-to-cpu may: host-counter output-alias
    assert torch.isfinite(energy), f"energy {energy}"  #- expect: data-dependent-branch may: print
    return x * 0.9, energy
#+
#+ def after(out, i):
#+     energies.append(out[1].cpu())
# %% Newton's method with a Jacobian -> newton
args = (torch.rand(3, device=device) + 1,)

def residual(x):
    return x**3 - 2 * x

def newton(x):
    for _ in range(3):
        J = torch.func.jacrev(residual)(x)
        x = x - torch.linalg.solve(J, residual(x))  #- expect: linalg-check
        #+ x = x - torch.linalg.solve_ex(J, residual(x))[0]
    return x
# %% ensemble members with vmap -> ensemble
members = [nn.Linear(3, 2).to(device) for _ in range(3)]
params, buffers = torch.func.stack_module_state(members)
base = nn.Linear(3, 2).to(device)
args = (torch.randn(4, 3, device=device),)

def call(p, b, x):
    return torch.func.functional_call(base, (p, b), (x,))

def ensemble(x):
    with torch.no_grad():
        out = torch.func.vmap(call, in_dims=(0, 0, None))(params, buffers, x)
        return out.mean(0), out.var(0)
