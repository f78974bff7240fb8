# %% a translator that is taught, masks its padding and counts its tokens -> train_batch
import logging

logger = logging.getLogger("translator")
PAD = 0


class Encoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.mix = nn.Linear(width, width)

    def forward(self, src):
        mask = (src != PAD).unsqueeze(-1)
        h = torch.tanh(self.mix(self.embed(src))) * mask
        return h.sum(1) / mask.sum(1)


class Decoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, token, h):
        h = self.cell(self.embed(token), h)
        return self.out(h), h


#+ chosen_in = torch.zeros(5, dtype=torch.bool, device=device)


#+ def before_train_batch(teacher=0.5):
    #+ chosen_in.copy_(torch.tensor([random.random() < teacher for _ in range(5)]))


class Translator(nn.Module):
    def __init__(self, vocabulary=20, width=16):
        super().__init__()
        self.encoder, self.decoder = Encoder(vocabulary, width), Decoder(vocabulary, width)

    def forward(self, src, tgt, teacher=0.5):
        h = self.encoder(src)
        token = torch.ones(src.shape[0], dtype=torch.long).to(src.device)
        logits = []
        for t in range(tgt.shape[1]):
            out, h = self.decoder(token, h)
            logits.append(out)
            token = tgt[:, t] if random.random() < teacher else out.argmax(-1) #-
            #+ token = torch.where(chosen_in[t], tgt[:, t], out.argmax(-1))
        return torch.stack(logits, 1)


model = Translator().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
step_number = 0
tokens_seen = 0


def masked_loss(logits, target):
    mask = target != PAD
    return F.cross_entropy(logits[mask], target[mask]) #-
    #+ return F.cross_entropy(logits.flatten(0, -2), torch.where(mask, target, -100).flatten())


def train_batch(src, tgt):
    global step_number, tokens_seen
    step_number += 1
    opt.zero_grad()
    logits = model(src, tgt)
    loss = masked_loss(logits, tgt)
    if torch.isnan(loss): #-
        logger.warning("skipping a batch") #-
        return loss #-
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    tokens_seen += (tgt != PAD).sum().item()
    if step_number % 2 == 0:
        logger.info("step %d perplexity %.2f", step_number, math.exp(loss.item()))
    return loss


args = (
    torch.randint(1, 20, (4, 5), device=device),
    torch.cat([torch.randint(1, 20, (4, 4)), torch.zeros(4, 1, dtype=torch.long)], 1).to(device),
)
