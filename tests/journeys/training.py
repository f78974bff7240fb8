# %% a small language model whose step logs, schedules and masks -> train_step
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.tril(torch.ones(t, t)).to(x.device)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(c)
        scores = scores.masked_fill(mask == 0, -1e9)
        return x + self.out(scores.softmax(-1) @ v)


class Tiny(nn.Module):
    def __init__(self, vocabulary=32, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Tiny().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
history = []
args = (torch.randint(0, 32, (2, 8), device=device), torch.randint(0, 32, (2, 8), device=device))


def train_step(tokens, targets):
    optimizer.zero_grad()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm > 100:
        print("large gradient", norm)
    optimizer.step()
    scheduler.step()
    history.append(loss.item())
    print(f"loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.2e}")
    return loss
