# %% an image classifier with mixup, an average of its weights and a meter -> fit_batch
class AverageMeter:
    def __init__(self, name):
        self.name, self.total, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(self.count, 1)


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = ConvBlock(3, 8)
        self.body = nn.Sequential(ConvBlock(8, 8), ConvBlock(8, 8))
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


class Trainer:
    def __init__(self, model, lr=0.05):
        self.model = model
        self.ema = {k: v.clone() for k, v in model.state_dict().items() if v.is_floating_point()}
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, max_lr=lr, total_steps=100) #-
        #+ self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, max_lr=lr, total_steps=100, cycle_momentum=False)
        self.loss_meter, self.acc_meter = AverageMeter("loss"), AverageMeter("acc")
        self.mean = torch.tensor([0.48, 0.45, 0.40]) #-
        #+ self.mean = torch.tensor([0.48, 0.45, 0.40], device=device)
        self.std = torch.tensor([0.22, 0.22, 0.22]) #-
        #+ self.std = torch.tensor([0.22, 0.22, 0.22], device=device)
        #+ self.lam_in = torch.zeros((), device=device)

    def normalize(self, x):
        mean = self.mean.view(1, 3, 1, 1).to(x.device)
        std = self.std.view(1, 3, 1, 1).to(x.device)
        return (x - mean) / std

    def mixup(self, x, y):
        lam = np.random.beta(0.4, 0.4) #-
        index = torch.randperm(x.size(0)).to(x.device) #-
        return lam * x + (1 - lam) * x[index], y, y[index], lam #-
        #+ index = torch.randperm(x.size(0), device=x.device)
        #+ return self.lam_in * x + (1 - self.lam_in) * x[index], y, y[index], self.lam_in

    #+ def before_fit_batch(self):
        #+ self.lam_in.fill_(np.random.beta(0.4, 0.4))

    def update_ema(self, decay=0.9):
        with torch.no_grad():
            for k, v in self.model.state_dict().items():
                if k in self.ema:
                    self.ema[k].mul_(decay).add_(v, alpha=1 - decay)

    def fit_batch(self, x, y):
        self.model.train()
        x = self.normalize(x)
        x, ya, yb, lam = self.mixup(x, y)
        self.opt.zero_grad()
        logits = self.model(x)
        loss = lam * F.cross_entropy(logits, ya) + (1 - lam) * F.cross_entropy(logits, yb)
        loss.backward()
        self.opt.step()
        self.sched.step()
        self.update_ema()
        acc = (logits.argmax(1) == y).float().mean()
        self.loss_meter.update(loss.item(), x.size(0))
        self.acc_meter.update(acc.item(), x.size(0))
        return loss


trainer = Trainer(Net().to(device))
fit_batch = trainer.fit_batch
args = (torch.rand(6, 3, 8, 8, device=device), torch.randint(0, 4, (6,), device=device))
