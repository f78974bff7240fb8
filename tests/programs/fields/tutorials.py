# %% the beginner's loop with a running loss every few batches -> train_one_batch
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 3)
        self.fc1 = nn.Linear(3 * 3 * 3, 10)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc1(torch.flatten(x, 1))

net = Net().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
running_loss, batch_idx, history = 0.0, 0, []
args = (torch.randn(4, 1, 8, 8, device=device), torch.randint(0, 10, (4,), device=device))

def train_one_batch(inputs, labels):
    global running_loss, batch_idx  #-
    optimizer.zero_grad()
    outputs = net(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    running_loss += loss.item()  #- expect: sync-item may: host-counter
    batch_idx += 1  #- expect: host-counter
    if batch_idx % 2 == 0:  #- may: branch-frozen
        history.append(running_loss / 2)  #- may: host-counter
        running_loss = 0.0  #- may: host-counter
    return loss.detach()
#+
#+ def after(loss, i):
#+     global running_loss, batch_idx
#+     running_loss += loss.item()
#+     batch_idx += 1
#+     if batch_idx % 2 == 0:
#+         history.append(running_loss / 2)
#+         running_loss = 0.0
# %% the test loop of a first tutorial -> test_batch
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
loss_fn = nn.CrossEntropyLoss()
test_loss, correct = 0.0, 0.0
args = (torch.randn(6, 4, 4, device=device), torch.randint(0, 4, (6,), device=device))

def test_batch(X, y):
    global test_loss, correct  #-
    model.eval()
    with torch.no_grad():
        pred = model(X)
        test_loss += loss_fn(pred, y).item()  #- expect: sync-item may: host-counter
        correct += (pred.argmax(1) == y).type(torch.float).sum().item()  #- expect: sync-item may: host-counter
        #+ loss, right = loss_fn(pred, y), (pred.argmax(1) == y).type(torch.float).sum()
    return pred  #-
    #+ return pred, loss, right
#+ def after(out, i):
#+     global test_loss, correct
#+     test_loss += out[1].item()
#+     correct += out[2].item()
def seen(out):
    return out[0] if isinstance(out, tuple) else out
# %% polynomial fitted by hand, tutorial style -> iteration
x = torch.linspace(-math.pi, math.pi, 32).to(device)
y = torch.sin(x)
a, b, c, d = (torch.zeros((), device=device) for _ in range(4))
learning_rate = 1e-4
args = (x, y)

def iteration(x, y):
    y_pred = a + b * x + c * x**2 + d * x**3
    loss = (y_pred - y).pow(2).sum()
    grad_y_pred = 2.0 * (y_pred - y)
    a.sub_(learning_rate * grad_y_pred.sum())
    b.sub_(learning_rate * (grad_y_pred * x).sum())
    c.sub_(learning_rate * (grad_y_pred * x**2).sum())
    d.sub_(learning_rate * (grad_y_pred * x**3).sum())
    return loss
# %% polynomial whose coefficients are rebound with a minus -> iteration
weights = {"a": torch.zeros((), device=device), "b": torch.ones((), device=device)}
args = (torch.linspace(-1, 1, 16).to(device), torch.linspace(0, 1, 16).to(device))

def iteration(x, y):
    pred = weights["a"] + weights["b"] * x
    grad = 2.0 * (pred - y)
    weights["a"] = weights["a"] - 1e-2 * grad.sum()  #- expect: stale-input|host-counter|output-alias
    weights["b"] = weights["b"] - 1e-2 * (grad * x).sum()  #- expect: stale-input|host-counter|output-alias
    #+ weights["a"].sub_(1e-2 * grad.sum())
    #+ weights["b"].sub_(1e-2 * (grad * x).sum())
    return (pred - y).square().sum()
# %% a character RNN that gives its loss per letter -> train
class RNN(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.hidden_size = n_hidden
        self.i2h, self.h2o = nn.Linear(n_in + n_hidden, n_hidden), nn.Linear(n_hidden, n_out)
        self.softmax = nn.LogSoftmax(dim=1)
    def forward(self, inp, hidden):
        hidden = torch.tanh(self.i2h(torch.cat((inp, hidden), 1)))
        return self.softmax(self.h2o(hidden)), hidden
    def init_hidden(self):
        return torch.zeros(1, self.hidden_size)  #-
        #+ return torch.zeros(1, self.hidden_size, device=device)

rnn, criterion, learning_rate = RNN(5, 8, 3).to(device), nn.NLLLoss(), 0.005
args = (torch.tensor([2], device=device), torch.eye(5)[[0, 3, 1, 4]].unsqueeze(1).to(device))

def train(category_tensor, line_tensor):
    hidden = rnn.init_hidden().to(device)  #- expect: copy-to-gpu
    #+ hidden = rnn.init_hidden()
    rnn.zero_grad()
    for i in range(line_tensor.size()[0]):
        output, hidden = rnn(line_tensor[i], hidden)
    loss = criterion(output, category_tensor)
    loss.backward()
    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-learning_rate)
    return output.detach(), loss.item()  #- expect: sync-item
    #+ return output.detach(), loss.detach()
# %% the gradient sign attack on one batch -> fgsm_attack_batch
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).to(device).eval()
epsilon = 0.1
args = (torch.rand(5, 4, 4, device=device), torch.randint(0, 4, (5,), device=device))

def fgsm_attack_batch(data, target):
    data = data.detach().requires_grad_(True)
    loss = F.cross_entropy(model(data), target)
    (data_grad,) = torch.autograd.grad(loss, data)
    perturbed = torch.clamp(data + epsilon * data_grad.sign(), 0, 1)
    final_pred = model(perturbed).max(1, keepdim=True)[1]
    return perturbed.detach(), final_pred
# %% the same attack, one image and an early return -> attack
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).to(device).eval()
args = (torch.rand(1, 4, 4, device=device), torch.randint(0, 4, (1,), device=device))
counts = {"correct": 0}

def attack(data, target):
    data = data.detach().requires_grad_(True)
    output = model(data)
    init_pred = output.max(1, keepdim=True)[1]
    if init_pred.item() != target.item():  #- expect: sync-item|data-dependent-branch
        return data.detach()  #-
    loss = F.nll_loss(F.log_softmax(output, 1), target)
    (grad,) = torch.autograd.grad(loss, data)
    adv = (data + 0.1 * grad.sign()).clamp(0, 1)
    counts["correct"] += 1  #- may: host-counter branch-frozen
    return adv.detach()  #-
    #+ return torch.where(init_pred.view(1, 1, 1) == target.view(1, 1, 1), adv, data).detach()
ignore = {"counts"}
# %% style transfer with the optimizer's closure -> run_style_step
content, style = torch.rand(1, 3, 6, 6).to(device), torch.rand(1, 3, 6, 6).to(device)
cnn = nn.Conv2d(3, 4, 3, padding=1).to(device).requires_grad_(False)
image = torch.rand(1, 3, 6, 6).to(device).requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.02, capturable=True)
def gram(t):
    a, b, c, d = t.size()
    f = t.view(a * b, c * d)
    return f @ f.t() / (a * b * c * d)
run = [0]
args = (content, style)

def run_style_step(content, style):
    def closure():
        optimizer.zero_grad()
        feats = cnn(image)
        style_score = F.mse_loss(gram(feats), gram(cnn(style)))
        content_score = F.mse_loss(feats, cnn(content))
        loss = 1000 * style_score + content_score
        loss.backward()
        run[0] += 1  #- expect: host-counter
        if run[0] % 50 == 0:  #- may: branch-frozen
            print(f"Style Loss : {style_score.item():4f} Content Loss: {content_score.item():4f}")  #- expect: sync-item
        return loss
    return optimizer.step(closure).detach()
#+ def after(loss, i):
#+     run[0] += 1
# %% L-BFGS on a small fit -> fit_step
model = nn.Linear(3, 1).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)  #-
#+ optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = (torch.randn(8, 3, device=device), torch.randn(8, 1, device=device))
ignore = {"result", "model"}

def fit_step(x, y):
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    return optimizer.step(closure).detach()  # expect: optimizer-sync|sync-item
# %% sequence to sequence with teacher forcing by a coin (random) -> train
encoder, decoder = nn.GRU(4, 6, batch_first=True).to(device), nn.GRUCell(4, 6).to(device)
head = nn.Linear(6, 4).to(device)
teacher_forcing_ratio = 0.5
args = (torch.randn(2, 3, 4, device=device), torch.randn(2, 3, 4, device=device))
#+ coin = torch.rand(1, device=device)

def train(source, target):
    _, h = encoder(source)
    h, inp, loss = h[0], target[:, 0], 0
    use_teacher_forcing = True if random.random() < teacher_forcing_ratio else False  #-
    #+ use_teacher_forcing = torch.rand(1, device=device) < teacher_forcing_ratio
    for di in range(target.size(1)):
        h = decoder(inp, h)
        out = head(h)
        loss = loss + F.mse_loss(out, target[:, di])
        inp = target[:, di] if use_teacher_forcing else out.detach()  #- expect: branch-frozen|host-random
        #+ inp = torch.where(use_teacher_forcing, target[:, di], out.detach())
    return (loss / target.size(1)).detach()
# %% spatial transformer, clean -> forward
class STN(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 6))
        self.loc[-1].weight.data.zero_()
        self.loc[-1].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.fc = nn.Linear(36, 3)
    def forward(self, x):
        theta = self.loc(x).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        return F.log_softmax(self.fc(F.grid_sample(x, grid, align_corners=False).flatten(1)), dim=1)

net = STN().to(device)
args = (torch.rand(2, 1, 6, 6, device=device),)

@torch.no_grad()
def forward(x):
    return net(x)
# %% per-sample gradients with torch.func -> per_sample_grads
from torch.func import functional_call, grad, vmap
model = nn.Linear(4, 3).to(device)
params = {k: v.detach() for k, v in model.named_parameters()}
args = (torch.randn(5, 4, device=device), torch.randint(0, 3, (5,), device=device))

def compute_loss(params, sample, target):
    predictions = functional_call(model, params, (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))

def per_sample_grads(data, targets):
    grads = vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, data, targets)
    return {k: g.flatten(1).norm(dim=1) for k, g in grads.items()}
# %% clipped and noised gradients that print a norm -> private_step
from torch.func import functional_call, grad, vmap
model = nn.Linear(4, 3).to(device)
params = {k: v.detach() for k, v in model.named_parameters()}
max_norm, epsilon_spent, log = 1.0, 0.0, []
args = (torch.randn(5, 4, device=device), torch.randint(0, 3, (5,), device=device))
def loss_one(p, s, t):
    return F.cross_entropy(functional_call(model, p, (s[None],)), t[None])

def private_step(data, targets):
    grads = vmap(grad(loss_one), in_dims=(None, 0, 0))(params, data, targets)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    if norms.max() > 10 * max_norm:  #- expect: data-dependent-branch
        log.append("large gradients")  #- may: host-counter
    factor = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for name, g in grads.items():
        params[name] -= 0.1 * torch.einsum("b,b...->...", factor, g) / len(data)  # may: host-counter
    return norms.mean()
#+ def after(norm, i):
#+     if norm > 1e9:
#+         log.append("large gradients")
