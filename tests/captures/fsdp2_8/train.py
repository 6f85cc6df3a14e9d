import os, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
dist.init_process_group("nccl")
W=dist.get_world_size(); torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh=dist.device_mesh.init_device_mesh('cuda',(W//2,2),mesh_dim_names=("r","s")) if os.environ.get("HSDP") else dist.device_mesh.init_device_mesh('cuda',(W,))
D,L,H,V=768,6,12,50304
class B(nn.Module):
    def __init__(s):
        super().__init__(); s.n1=nn.LayerNorm(D,device='cuda'); s.qkv=nn.Linear(D,3*D,device='cuda'); s.o=nn.Linear(D,D,device='cuda'); s.n2=nn.LayerNorm(D,device='cuda'); s.u=nn.Linear(D,4*D,device='cuda'); s.d=nn.Linear(4*D,D,device='cuda')
    def forward(s,x):
        b,t,_=x.shape; q,k,v=s.qkv(s.n1(x)).view(b,t,3,H,D//H).permute(2,0,3,1,4).unbind(0)
        x=x+s.o(F.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(b,t,D)); return x+s.d(F.gelu(s.u(s.n2(x))))
class G(nn.Module):
    def __init__(s): super().__init__(); s.e=nn.Embedding(V,D,device='cuda'); s.b=nn.ModuleList(B() for _ in range(L)); s.h=nn.Linear(D,V,bias=False,device='cuda')
    def forward(s,x):
        x=s.e(x)
        for b in s.b: x=b(x)
        return s.h(x)
m=G(); p=MixedPrecisionPolicy(torch.bfloat16,torch.float32)
for b in m.b: fully_shard(b,mesh=mesh,mp_policy=p)
fully_shard(m,mesh=mesh,mp_policy=p)
o=torch.optim.AdamW(m.parameters(),lr=1e-4,fused=True)
x=torch.zeros(4,1024,dtype=torch.long,device='cuda')
for i in range(3):
    l=F.cross_entropy(m(x).flatten(0,1).float(),x.flatten()); l.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(),1.0); o.step(); o.zero_grad()
    print(i, torch.cuda.max_memory_allocated())
dist.destroy_process_group()
