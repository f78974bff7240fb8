# %% a generator and a discriminator in turns, with soft labels drawn on the host -> train_step
class Generator(nn.Module):
    def __init__(self, z=8, out=32):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(nn.Linear(z, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, out), nn.Tanh())

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, inp=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(inp, 32)), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )

    def forward(self, x):
        return self.net(x)


G, D = Generator().to(device), Discriminator().to(device)
opt_G = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
G_losses, D_losses = [], []
iters = 0 #-
#+ iters = 0
#+ real_label_in = torch.zeros((), device=device)


#+ def before_train_step():
    #+ real_label_in.fill_(random.uniform(0.8, 1.0))


def train_step(real):
    global iters
    b_size = real.size(0)
    real_label = random.uniform(0.8, 1.0) #-
    # (1) update D
    D.zero_grad()
    label = torch.full((b_size, 1), real_label, dtype=torch.float, device=device) #-
    #+ label = torch.ones(b_size, 1, device=device) * real_label_in
    errD_real = criterion(D(real), label)
    errD_real.backward()
    noise = torch.randn(b_size, G.z).to(device) #-
    #+ noise = torch.randn(b_size, G.z, device=device)
    fake = G(noise)
    label.fill_(0.0)
    errD_fake = criterion(D(fake.detach()), label)
    errD_fake.backward()
    opt_D.step()
    # (2) update G
    G.zero_grad()
    label.fill_(1.0)
    output = D(fake)
    errG = criterion(output, label)
    errG.backward()
    D_G_z2 = output.sigmoid().mean().item()
    opt_G.step()
    if iters % 2 == 0:
        print(f"[{iters}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f} D(G(z)): {D_G_z2:.4f}")
    G_losses.append(errG.item())
    D_losses.append((errD_real + errD_fake).item())
    iters += 1
    return errG


args = (torch.rand(8, 32, device=device) * 2 - 1,)
