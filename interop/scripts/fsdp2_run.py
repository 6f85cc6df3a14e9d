

# ---- ranks ----


def mesh_sizes(world):
    """(replicas, shards) of so many ranks: the plan's, or the nearest that they allow."""
    if world % (TP * CP):
        raise SystemExit(f"{world} ranks: expected a multiple of {TP * CP}, which share samples")
    world //= TP * CP
    if world == REPLICATE * SHARD:
        return REPLICATE, SHARD
    least = 2 if REPLICATE > 1 and world > 1 else 1
    fits = [n for n in range(1, min(world, SHARD) + 1) if world % n == 0 and world // n >= least]
    fits = [n for n in fits if n * CP * TP % EP == 0]
    shard = max(fits, default=1)
    return world // shard, shard


def make_mesh():
    replicate, shard = mesh_sizes(dist.get_world_size())
    if (replicate, shard) != (REPLICATE, SHARD):
        say(
            f"the plan's mesh is {REPLICATE} x {SHARD} (replicas x shards), "
            f"this run's is {replicate} x {shard}"
        )
    shard *= CP  # parameters are sharded over the ranks that share sequences, too
    if TP > 1:
        sizes, names = (replicate, shard, TP), ("replicate", "shard", "tp")
        first = 0 if REPLICATE > 1 or replicate > 1 else 1
        return init_device_mesh(DEVICE.type, sizes[first:], mesh_dim_names=names[first:])
    if REPLICATE > 1 or replicate > 1:
        names = ("replicate", "shard")
        if INNER == "replicate":
            from torch.distributed.device_mesh import DeviceMesh

            ranks = torch.arange(replicate * shard).view(shard, replicate).t()
            return DeviceMesh(DEVICE.type, ranks, mesh_dim_names=names)
        return init_device_mesh(DEVICE.type, (replicate, shard), mesh_dim_names=names)
    return init_device_mesh(DEVICE.type, (shard,), mesh_dim_names=("shard",))


def say(text):
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{os.path.basename(__file__)}: {text}", file=sys.stderr, flush=True)


def streams_of_a_host():
    """What FSDP2 asks of a host without a GPU that its PyTorch, 2.4 to 2.7, does not have there."""

    class Stream:
        def __init__(self, *arguments, **options):
            pass

        def nothing(self, *arguments, **options):
            pass

        wait_stream = wait_event = record = wait = synchronize = nothing

        def record_event(self, event=None):
            return event or Stream()

    if VERSION >= (2, 6):
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

        for name in ("record_event", "wait_event"):  # a stream of torch.cpu has no events
            if not hasattr(torch.cpu.Stream, name):
                setattr(torch.cpu.Stream, name, getattr(Stream, name))
    else:
        from torch.distributed._composable.fsdp import _fsdp_param_group as group

        torch.cuda.Stream = torch.cuda.Event = Stream
        torch.cuda.stream = lambda stream: contextlib.nullcontext()
        torch.cuda.current_stream = lambda device=None: Stream()
        context = group.FSDPCommContext
        making = "lazy_init" if hasattr(context, "lazy_init") else "init"
        make_streams = getattr(context, making)

        def make(self):
            available, torch.cuda.is_available = torch.cuda.is_available, lambda: True
            try:
                make_streams(self)
            finally:
                torch.cuda.is_available = available

        setattr(context, making, make)
    copy_out = group.foreach_all_gather_copy_out

    def keep_versions(result, parameters, ranks):
        """Parameters that are gathered again are not modified, whatever a CPU's copy says."""
        with contextlib.ExitStack() as stack:
            for parameter in parameters:
                for tensor in getattr(parameter, "all_gather_outputs", ()):
                    stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))
            copy_out(result, parameters, ranks)

    group.foreach_all_gather_copy_out = keep_versions


def ranks_here():
    """How many ranks to start where no launcher did: the plan's if this machine has room."""
    if torch.cuda.is_available():
        return min(torch.cuda.device_count(), REPLICATE * SHARD * CP * TP)
    if REPLICATE * SHARD * CP * TP <= 8:
        return REPLICATE * SHARD * CP * TP
    shards = min(SHARD, 4 if GROUPS else 2)
    return shards * min(REPLICATE, 2) * CP * TP


def available_bytes():
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def needed_bytes(ranks):
    """A lower bound of what all ranks on one host hold: states, one copy of a rank's, logits."""
    replicate, shard = mesh_sizes(ranks)
    states = PARAMETERS * 12 * replicate
    widest = 4 * max(parameters for _, parameters, _ in UNITS)
    logits = 12 * MICRO_BATCH * SEQUENCE * VOCABULARY
    return states + ranks * (3 * widest + logits)


def rank_of_launcher():
    """The environment of torchrun, made of that of srun or mpirun where they started us."""
    for rank, world, local in (
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        if "RANK" not in os.environ and rank in os.environ and "MASTER_ADDR" in os.environ:
            os.environ["RANK"] = os.environ[rank]
            os.environ["WORLD_SIZE"] = os.environ[world]
            os.environ["LOCAL_RANK"] = os.environ[local]
            os.environ.setdefault("MASTER_PORT", "29500")
    return "RANK" in os.environ


# ---- collectives of a recording ----


class Recording(record):
    """As of any job, and the collectives of its last step."""

    def __init__(self, folder, steps):
        super().__init__(folder, warmup=2, steps=steps)
        self.collectives, self.undo, self.inside = [], [], None

    def __enter__(self):
        for kind, names in (
            ("all_gather", ("all_gather_into_tensor", "all_gather_single")),
            ("reduce_scatter", ("reduce_scatter_tensor", "reduce_scatter_single")),
            ("all_reduce", ("all_reduce",)),
        ):
            for name in names:  # *_single: what FSDP2 calls from PyTorch 2.13 on
                if hasattr(dist, name):
                    self.watch(dist, kind, name)
        return super().__enter__()

    def watch(self, module, kind, name):
        original = getattr(module, name)

        def run(*arguments, **options):
            tensors = [t for t in (*arguments, *options.values()) if isinstance(t, torch.Tensor)]
            self.add(kind, tensors, options.get("group") or dist.group.WORLD)
            return original(*arguments, **options)

        self.undo.append((module, name, original))
        setattr(module, name, run)

    def add(self, kind, tensors, group):
        size = max(t.numel() * t.element_size() for t in tensors)
        ranks = dist.get_process_group_ranks(group)
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        about = {"kind": kind, "bytes": size, "ranks": len(ranks), "stride": stride}
        self.collectives.append(about)

    def step(self):
        if self._count < self.total_steps - 1:
            self.collectives.clear()  # those of the last step stay
        if self._count == self.total_steps - 2 and TP * CP * EP > 1:
            self.inside = inside_layers(self)
            self.inside.__enter__()
        super().step()

    def __exit__(self, *error):
        if self.inside:
            self.inside.__exit__(*error)
        super().__exit__(*error)
        for module, name, original in self.undo:
            setattr(module, name, original)

    def _about(self):
        units = [name for name, _, _ in UNITS]
        return {**super()._about(), "units": units, "collectives": self.collectives}


def inside_layers(recording):
    """Adds collectives inside layers as they are done: what checkpointing kept is not done again."""
    from torch.utils._python_dispatch import TorchDispatchMode

    kinds = {
        "all_gather_into_tensor": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_reduce": "all_reduce",
        "all_to_all_single": "all_to_all",
    }

    class Inside(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, arguments=(), options=None):
            if any(hasattr(each, "full_tensor") for each in types):
                return NotImplemented  # a DTensor: its parts come by
            result = call(*arguments, **(options or {}))
            library, _, name = call._schema.name.partition("::")
            if library == "_c10d_functional" and name in kinds:
                group = dist.distributed_c10d._resolve_process_group(arguments[-1])
                recording.add(kinds[name], (arguments[0], result), group)
            return result

    return Inside()


# ---- the run ----


def initialize(model, mesh):
    """Normal matrices, norms of one, biases of zero; replicas alike, shards each their own."""
    generator = torch.Generator(device=OFFLOAD_DEVICE)
    part = mesh.get_local_rank("shard") * TP + (mesh.get_local_rank("tp") if TP > 1 else 0)
    generator.manual_seed(SEED * 1000003 + part)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if parameter.ndim > 1:
                local.normal_(std=0.02, generator=generator)
            elif name.endswith("bias"):
                local.zero_()
            else:
                local.fill_(NORM_WEIGHT)


def check_units(model):
    """Parameters in all must be those that the plan was forecast with."""
    there = sum(p.numel() for p in model.parameters())
    if there != PARAMETERS and not REHEARSAL:
        raise SystemExit(f"the model has {there} parameters, the forecast's has {PARAMETERS}")


def run(arguments):
    global DEVICE, OFFLOAD_DEVICE
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    DEVICE = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    OFFLOAD_DEVICE = torch.device("cpu") if OFFLOADED else DEVICE
    if cuda:
        torch.cuda.set_device(DEVICE)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
        if VERSION < (2, 8):
            streams_of_a_host()
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = make_mesh()
    if CP > 1:
        share_sequences()
    torch.manual_seed(SEED + dist.get_rank() // (CP * TP))
    model = build(mesh)
    initialize(model, mesh)
    optimizer, scheduler = optimizer_of(model)
    losses = []
    recording = Recording(arguments.record, arguments.steps) if arguments.record else None
    with recording or contextlib.nullcontext():
        for _ in range(recording.total_steps if recording else arguments.steps):
            losses.append(train_step(model, optimizer, scheduler))
            if recording:
                recording.step()
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses, 1):
            print(f"step {step}: loss {float(loss):.4f}", flush=True)
    dist.destroy_process_group()


def start(local_rank, world, port, arguments):
    os.environ.update(
        RANK=str(local_rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    run(arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=3, help="steps to run, or to record (3)")
    if EP > 1:
        parser.add_argument(
            "--balanced", action="store_true", help="each expert has as many rows, as forecast"
        )
    parser.add_argument(
        "--record", metavar="DIR", help="write a recording for `foreshard validate --run DIR`"
    )
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    if getattr(arguments, "balanced", False):
        os.environ["FORESHARD_BALANCED"] = "1"  # the ranks read it
    warn_of_version()
    if CP > 1 and not torch.cuda.is_available():
        raise SystemExit("PyTorch has no ring attention on the host: run it on GPUs")
    if rank_of_launcher():
        run(arguments)
        return
    ranks = ranks_here()
    if not torch.cuda.is_available() and needed_bytes(ranks) > available_bytes() and not REHEARSAL:
        say(
            f"the model's states on {ranks} ranks of this host take at least "
            f"{needed_bytes(ranks) / 2**30:.0f} GiB, {available_bytes() / 2**30:.0f} are free: "
            "a rehearsal with narrow layers, all else as in the plan; run it with torchrun on GPUs"
        )
        os.environ["FORESHARD_REHEARSAL"] = "1"  # the ranks read it
        if arguments.record:
            say("a rehearsal's bytes are not the forecast's")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(start, (ranks, port, arguments), nprocs=ranks)


if __name__ == "__main__":
    main()
