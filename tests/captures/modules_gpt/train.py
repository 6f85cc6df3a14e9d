import sys, torch, torch.nn as nn, torch.nn.functional as F
B, S = int(sys.argv[1]), int(sys.argv[2])
D, H, L, V = 256, 4, 2, 1000
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3*D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4*D), nn.Linear(4*D, D)
    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, H, d//H).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(512, D)
        self.blocks = nn.ModuleList([Block() for _ in range(L)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
model = GPT().cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.zeros(B, S, dtype=torch.long, device="cuda")
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
print("PEAK", torch.cuda.max_memory_allocated())
