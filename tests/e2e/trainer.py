# SPDX-License-Identifier: Apache-2.0
"""A trainer on one GPU that gives a server on another its weights over NCCL, as SGLang's trainers do: answers behind it are
those of a server that got the same tensors in a body. Skipped without PyTorch and two GPUs.

    trainer.py MINISGL MODEL
"""
import importlib.util
import json
import pathlib
import sys
import threading
from datetime import timedelta

from serving import Server, check
from weights import ask, essence, file_of, flipped, post, tensors_of

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def make_group(torch, port, name):
    """Rank 0 of two, as verl, slime and OpenRLHF make it beside their own groups."""
    from torch.distributed import distributed_c10d as c10d
    store, rank, size = next(c10d.rendezvous("tcp://127.0.0.1:%d" % port, 0, 2, timeout=timedelta(seconds=120)))
    group, _ = c10d._new_process_group_helper(size, rank, [], c10d.Backend("nccl"), c10d.PrefixStore(name, store),
                                              group_name=name, timeout=timedelta(seconds=120))
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


class Call(threading.Thread):
    """A call that is under way."""

    def __init__(self, server, path, body):
        super().__init__(daemon=True)
        self.run = lambda: setattr(self, "said", post(server, path, body))
        self.start()

    def end(self, what):
        self.join(120)
        check(self.said[0] == 200 and self.said[1]["success"], "%s: %s" % (what, self.said[1]))


def main(program, model):
    if importlib.util.find_spec("torch") is None:
        sys.exit(77)
    import torch
    if torch.cuda.device_count() < 2:
        sys.exit(77)
    torch.cuda.set_device(1)
    changed = {n: flipped(t) for n, t in tensors_of(pathlib.Path(model)).items() if "o_proj" in n}
    options = ("--device", "cuda:0", "--deterministic")
    with Server(program, model, *options) as server:
        before = essence(ask(server))
        status, said = post(server, "/update_weights_from_tensor", file_of(changed), **{"Content-Type": "application/octet-stream"})
        check(status == 200 and said["success"], "tensors in a body")
        wanted = essence(ask(server))
        check(wanted != before, "change the answers")
    with Server(program, model, *options) as server:
        for number, name in enumerate(("sync", "again")):
            join = Call(server, "/init_weights_update_group",
                        {"master_address": "127.0.0.1", "master_port": 29655 + number, "rank_offset": 1, "world_size": 2,
                         "group_name": name, "backend": "nccl"})
            group = make_group(torch, 29655 + number, name)
            join.end("the server joins")
            names = sorted(changed, reverse=True)
            for part in (names[::2], names[1::2]):  # in buckets, as trainers send them
                update = Call(server, "/update_weights_from_distributed",
                              {"names": part, "dtypes": [DTYPES[changed[n][0]] for n in part],
                               "shapes": [changed[n][1] for n in part], "group_name": name, "weight_version": name})
                for n in part:
                    dtype, shape, value = changed[n]
                    t = torch.frombuffer(bytearray(value), dtype=getattr(torch, DTYPES[dtype])).reshape(shape).cuda()
                    torch.distributed.broadcast(t, src=0, group=group)
                torch.cuda.synchronize()
                update.end("a bucket")
            check(essence(ask(server)) == wanted, "answers are those of the new weights")
            check(json.loads(server.call("/get_weight_version")[1])["weight_version"] == name, "by their name")
            status, said = post(server, "/destroy_weights_update_group", {"group_name": name})
            check(status == 200 and said["success"], "the group is left")


if __name__ == "__main__":
    main(*sys.argv[1:])
