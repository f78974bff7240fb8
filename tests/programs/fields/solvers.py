# %% conjugate gradients with a residual test -> cg
A = torch.eye(4).to(device) * 3 + 0.1
args = (torch.randn(4, device=device),)
ignore = {"result"}

def cg(b, tol=1e-12):
    x, r = torch.zeros_like(b), b.clone()
    p, rs = r, r @ r
    for _ in range(4):
        Ap = A @ p
        alpha = rs / (p @ Ap)
        x, r = x + alpha * p, r - alpha * Ap
        rs_new = r @ r
        if rs_new.sqrt() < tol:  #- expect: data-dependent-branch
            break  #-
        p, rs = r + rs_new / rs * p, rs_new
    return x
# %% power iteration of fixed length, clean -> spectral_norm
u = F.normalize(torch.randn(4), dim=0).to(device)
args = (torch.randn(4, 3, device=device),)

@torch.no_grad()
def spectral_norm(w):
    for _ in range(3):
        v = F.normalize(w.T @ u, dim=0)
        u.copy_(F.normalize(w @ v, dim=0))
    return u @ w @ v
# %% while with a device flag -> relax
args = (torch.rand(5, 5, device=device),)
ignore = {"result"}

class Jacobi:
    def __init__(self, tol):
        self.tol, self.iterations = tol, 0
    def converged(self, a, b):
        return (a - b).abs().max() < self.tol  # a tensor
    def run(self, grid):
        old = torch.zeros_like(grid)
        while not self.converged(grid, old) and self.iterations < 4:  #- expect: data-dependent-branch may: branch-frozen
        #+ for _ in range(4):
            old = grid
            grid = F.avg_pool2d(grid[None, None], 3, 1, 1)[0, 0]
            self.iterations += 1  #- may: host-counter
        self.iterations = 0
        return grid

solver = Jacobi(1e-9)
def relax(grid):
    return solver.run(grid)
# %% Newton's method with a Jacobian by jacrev and solve -> newton
from torch.func import jacrev
args = (torch.rand(3, device=device) + 1,)

def residual(x):
    return x ** 2 - torch.tensor([2.0, 3.0, 4.0], device=x.device)  #- expect: tensor-literal
    #+ return x ** 2 - goal
#+ goal = torch.tensor([2.0, 3.0, 4.0], device=device)

def newton(x):
    for _ in range(2):
        J = jacrev(residual)(x)
        x = x - torch.linalg.solve(J, residual(x))  #- expect: linalg-check
        #+ x = x - torch.linalg.solve_ex(J, residual(x))[0]
    return x
# %% a time step limited by the CFL condition -> advance
u = torch.rand(16).to(device)
t = 0.0
args = (torch.ones((), device=device),)
ignore = {"result", "u", "t"}

def cfl(u, dx=0.1):
    return 0.5 * dx / u.abs().max().item()  #- expect: sync-item
    #+ return 0.5 * dx / u.abs().max()

def advance(scale):
    global t  #-
    dt = cfl(u)
    t += dt  #- may: host-counter
    u.sub_(dt * scale * (u - u.roll(1)) / 0.1)  #- may: scalar-frozen
    #+ u.sub_(dt * scale * (u - u.roll(1)) / 0.1)
    return u.clone()
# %% leapfrog steps with a Metropolis test -> hmc
args = (torch.randn(4, 2, device=device),)

def energy(q, p):
    return 0.5 * (q.square() + p.square()).sum(1)

def hmc(q):
    p = torch.randn_like(q)
    h0, q0 = energy(q, p), q
    for _ in range(3):
        p = p - 0.05 * q
        q = q + 0.1 * p
        p = p - 0.05 * q
    accept = torch.rand_like(h0) < (h0 - energy(q, p)).exp()
    q[~accept] = q0[~accept]  #- expect: dynamic-shape|mask-assignment may: mask-assignment dynamic-shape
    #+ q = torch.where(accept[:, None], q, q0)
    return q
# %% a Metropolis move accepted by a Python comparison -> walk
state = torch.zeros(2, device=device)
accepted = 0
ignore = {"result", "state", "accepted"}
args = (torch.randn(2, device=device),)

def log_p(x):
    return -0.5 * x.square().sum()

def walk(noise):
    global accepted  #-
    proposal = state + noise
    if torch.rand(()).to(device).log() < log_p(proposal) - log_p(state):  #- expect: data-dependent-branch may: copy-to-gpu host-random
        state.copy_(proposal)  #- may: branch-frozen host-random
        accepted += 1  #- may: host-counter
    #+ state.copy_(torch.where(torch.rand((), device=device).log() < log_p(proposal) - log_p(state), proposal, state))
    return state.clone()
# %% LBFGS with a closure of its own -> lbfgs_step
w = torch.randn(3).to(device).requires_grad_()
opt = torch.optim.LBFGS([w], max_iter=2)
args = (torch.randn(5, 3, device=device),)
ignore = {"result", "w"}

def lbfgs_step(x):
    def closure():
        opt.zero_grad()
        loss = (x @ w - 1).square().mean()
        loss.backward()
        return loss
    return opt.step(closure).detach()  #- expect: optimizer-sync|sync-item may: gradients-rebound
    #+ return closure().detach()
# %% an eigenproblem on each step -> principal
args = (torch.randn(6, 3, device=device),)
ignore = {"result"}

def covariance(x):
    c = x - x.mean(0)
    return c.T @ c / (len(x) - 1)

def principal(x):
    values, vectors = torch.linalg.eigh(covariance(x))  #- expect: linalg-host|linalg-check
    return values[-1], vectors[:, -1].abs()  #-
    #+ v = torch.ones(3, device=x.device)
    #+ for _ in range(8):
    #+     v = F.normalize(covariance(x) @ v, dim=0)
    #+ return v @ covariance(x) @ v, v.abs()
# %% boundary values are set from Python numbers -> apply_boundary
field = torch.rand(6, 6).to(device)
args = (torch.rand(6, 6, device=device),)

def apply_boundary(u):
    u = u.clone()
    u[0, :] = 1.0
    u[-1, :] = 0.0
    u[0, 0] = 0.5  #- expect: scalar-assignment
    #+ u[:1, :1].fill_(0.5)
    return u + 0.1 * (u.roll(1, 0) - u)
# %% sparse matrix times vector in a loop, clean -> smooth
rows = torch.tensor([0, 1, 2, 3]).to(device)
cols = torch.tensor([1, 2, 3, 0]).to(device)
vals = torch.tensor([0.5, 0.2, 0.1, 0.3]).to(device)
args = (torch.randn(4, device=device),)

def spmv(x):
    return torch.zeros_like(x).index_add_(0, rows, vals * x[cols])

def smooth(x):
    for _ in range(3):
        x = 0.5 * x + 0.5 * spmv(x)
    return x
