# %% survival analysis: Cox's partial likelihood over risk sets, with a concordance -> fit
class DeepSurv(nn.Module):
    def __init__(self, features=10, hidden=16, p=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.SELU(), nn.Dropout(p), nn.Linear(hidden, 1, bias=False)
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class NegativeLogLikelihood(nn.Module):
    def __init__(self, reg=1e-4):
        super().__init__()
        self.reg = reg

    def forward(self, risk, y, e, model):
        mask = torch.ones(y.shape[0], y.shape[0]) #-
        #+ mask = torch.ones(y.shape[0], y.shape[0], device=risk.device)
        mask[(y.cpu().unsqueeze(0) - y.cpu().unsqueeze(1)) > 0] = 0 #-
        #+ mask[(y.unsqueeze(0) - y.unsqueeze(1)) > 0] = 0
        mask = mask.to(risk.device) #-
        log_loss = torch.exp(risk).unsqueeze(0) * mask
        log_loss = torch.log(log_loss.sum(dim=1) / mask.sum(dim=1))
        neg = -torch.sum((risk - log_loss)[e == 1]) / torch.sum(e)
        l2 = 0
        for name, p in model.named_parameters():
            if "weight" in name:
                l2 = l2 + torch.norm(p, p=2)
        return neg + self.reg * l2


model = DeepSurv().to(device)
criterion = NegativeLogLikelihood()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3) #-
#+ optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2, device=device), weight_decay=1e-3)
epoch = 0
curve = []


def adjust_learning_rate(optimizer, epoch, lr, decay):
    for group in optimizer.param_groups:
        group["lr"] = lr / (1 + epoch * decay) #-
        #+ group["lr"].fill_(lr / (1 + epoch * decay))


#+ def before_fit():
    #+ adjust_learning_rate(optimizer, epoch + 1, 1e-2, 1e-3)


def fit(x, y, e):
    global epoch
    epoch += 1
    adjust_learning_rate(optimizer, epoch, 1e-2, 1e-3) #-
    model.train()
    risk = model(x)
    loss = criterion(risk, y, e, model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curve.append(loss.item())
    return loss


args = (
    torch.randn(16, 10, device=device),
    torch.rand(16, device=device) * 10,
    (torch.rand(16, device=device) > 0.3).float(),
)
