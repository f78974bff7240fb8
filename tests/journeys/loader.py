# %% a forecaster that draws its own batches, stops early and scales its targets -> iteration
class Windows(torch.utils.data.Dataset):
    def __init__(self, series, length=8):
        self.series, self.length = series, length

    def __len__(self):
        return len(self.series) - self.length - 1

    def __getitem__(self, i):
        return self.series[i : i + self.length], self.series[i + self.length]


class Forecaster(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h, _ = self.lstm(x.unsqueeze(-1))
        return self.out(h[:, -1]).squeeze(-1)


class EarlyStopping:
    def __init__(self, patience=3):
        self.best, self.bad, self.patience, self.stopped = float("inf"), 0, patience, False

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            self.stopped = self.bad > self.patience


series = torch.sin(torch.arange(200) / 7.0)
loader = torch.utils.data.DataLoader(Windows(series), batch_size=4, shuffle=False)
batches = iter(loader)
model = Forecaster().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
stopping = EarlyStopping()
mean, std = series.mean(), series.std()


def iteration(): #-
    x, y = next(batches) #-
    x, y = x.to(device), y.to(device) #-
#+ def iteration(x, y):
    x, y = (x - mean) / std, (y - mean) / std
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    stopping(loss.item())
    return loss


args = () #-
#+ x, y = next(batches)
#+ args = (x.to(device), y.to(device))
