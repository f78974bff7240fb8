# %% a server that pads, looks up on the CPU and answers in lists -> handle
class Ranker(nn.Module):
    def __init__(self, vocabulary=64, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.score = nn.Linear(width, 1)
        self.popularity = torch.rand(vocabulary) #-
        #+ self.register_buffer("popularity", torch.rand(vocabulary))

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(F.gelu(self.up(x)))
        x = x + self.popularity[tokens.cpu()].to(tokens.device).unsqueeze(-1) #-
        #+ x = x + self.popularity[tokens].unsqueeze(-1)
        keep = tokens != 0
        lengths = keep.sum(1)
        longest = int(lengths.max()) #-
        x, keep = x[:, :longest], keep[:, :longest] #-
        pooled = (x * keep.unsqueeze(-1)).sum(1) / lengths.clamp(min=1).unsqueeze(-1)
        return self.score(pooled).squeeze(-1)


class Server:
    def __init__(self):
        self.model = Ranker().to(device).eval()
        self.served = 0

    @torch.no_grad()
    def handle(self, tokens):
        self.served += 1
        scores = self.model(tokens).sigmoid()
        good = scores.nonzero().squeeze(-1) #-
        #+ good = torch.nonzero_static(scores, size=len(scores), fill_value=-1).squeeze(-1)
        best = scores[good].max()
        return (scores / best).tolist() #-
        #+ return scores / best


server = Server()
handle = server.handle
args = (torch.cat([torch.randint(1, 64, (4, 6)), torch.zeros(4, 2, dtype=torch.long)], 1).to(device),)
