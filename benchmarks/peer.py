"""Speed and memory on the workload of a peer's script, as one JSON object: python benchmarks/peer.py [--peer SCRIPT]

Model, prompts, forced lengths, micro-batches and the fields printed are those of the script, so that its cases and
these can be laid side by side: every completion has exactly `--new-tokens` tokens, the first step warms up and is left
out, `train` is a step without its sampling, and each case has a process of its own. With `--peer` both run in turn
`--rounds` times, and the medians' ratios, ours over the peer's, are printed as well.

| case | the peer's | what it is |
|---|---|---|
| grpo | grpo | group-relative policy gradient |
| gkd | distillation | full reverse KL from the teacher on own completions |
| opd, sparse-opd | distillation | the teacher's log-ratio as advantage of each token, of two tokens a completion |
| mixed | grpo | sampling alone where rows end early; the peer decodes every row until the longest has ended |
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"reward": "exact"},
    "gkd": {"algorithm.kind": "reverse_kl", "algorithm.student_share": 1.0},
    "opd": {},
    "sparse-opd": {},
    "mixed": {"reward": "exact"},
}
PEERS = {"grpo": "grpo", "gkd": "distillation", "opd": "distillation", "sparse-opd": "distillation", "mixed": "grpo"}
WORKLOAD = {"prompts": 8, "gens": 4, "new_tokens": 128, "micro": 32, "steps": 4, "vocab": 4096, "hidden": 256,
            "layers": 4, "threads": os.cpu_count() or 1}  # fmt: skip
ENDS = 2  # of a row of mixed length, expected within the limit: the mean length is 0.43 of it
PACKAGES = ("torch", "transformers")


def main() -> None:
    """Runs every case, ours alone or both in turn, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(OPTIONS))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    for name, value in WORKLOAD.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: seconds of the process, which a "
                        "busy machine disturbs less; with --threads 1 they are those of an idle one")  # fmt: skip
    parser.add_argument("--memory", action="store_true", help="instead of times: the most resident in each stage")
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one case")
    parser.add_argument("--peer", help="the peer's script; its trainers run in turn with these cases")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the peer")
    parser.add_argument("--rounds", type=int, default=1, help="times that everything is run")
    options = parser.parse_args()
    workload = {name: getattr(options, name) for name in WORKLOAD}
    if options.case and options.memory:
        print("CASE " + json.dumps(marks_of(options.case, argparse.Namespace(**workload))))
        return
    if options.case:
        if options.clock == "cpu":
            time.perf_counter = time.process_time
        print("CASE " + json.dumps(one_case(options.case, argparse.Namespace(**workload))))
        return
    cases = options.cases.split(",")
    found: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "workload": workload,
        "clock": options.clock,
        "cases": [],
    }
    peers: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        for peer in dict.fromkeys(PEERS[case] for case in cases):
            if options.peer:
                peers.append(of_peer(options, peer, workload))
            found["cases"] += [ours(options, case, workload) for case in cases if PEERS[case] == peer]
    if options.peer:
        found |= {"peer_cases": peers, "ratios": ratios(found["cases"], peers, workload)}
    print(json.dumps(found, indent=1))


# -- processes ------------------------------------------------------------------------------------------------


def ours(options: argparse.Namespace, case: str, workload: dict[str, int]) -> dict[str, Any]:
    """One of our cases in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--clock", options.clock, *words(workload)]
    command += ["--memory"] if options.memory else []
    return finished(case, command, "CASE ", workload["threads"], options.timeout)


def of_peer(options: argparse.Namespace, case: str, workload: dict[str, int]) -> dict[str, Any]:
    """One of the peer's, with the same clock."""
    clock = "import time; time.perf_counter = time.process_time; " if options.clock == "cpu" else ""
    script = f"{clock}import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [options.peer_python, "-c", script, options.peer, "--case", case, *words(workload)]
    return finished(case, command, "PEER ", workload["threads"], options.timeout)


def finished(case: str, command: list[str], mark: str, threads: int, timeout: int) -> dict[str, Any]:
    """What a case printed, or why it did not; the load says what else the machine was doing when it began."""
    load = round(os.getloadavg()[0], 1)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    found: dict[str, Any] = {"case": case, "load_average": load}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith(mark)]
        found |= json.loads(lines[-1].removeprefix(mark)) if lines else {"error": done.stderr[-900:]}
    except subprocess.TimeoutExpired:
        found["error"] = f"took more than {timeout} s"
    print(mark + json.dumps(found), file=sys.stderr, flush=True)
    return found


def words(workload: dict[str, int]) -> list[str]:
    """The workload as arguments."""
    return [word for name, value in workload.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def ratios(cases: list[dict[str, Any]], peers: list[dict[str, Any]], workload: dict[str, int]) -> dict[str, Any]:
    """Ours over the peer's: medians over the rounds of seconds, memory and (theirs under ours) tokens per second."""
    found: dict[str, Any] = {}
    for case, peer in PEERS.items():
        mine = [run for run in cases if run["case"] == case and "error" not in run]
        theirs = [run for run in peers if run["case"] == peer and "error" not in run]
        if not mine or not theirs:
            continue
        measured = {
            field: median(run[field] for run in mine) / median(run[field] for run in theirs)
            for field in ("train_s", "step_s", "gen_tok_s", "rss_delta_mb")
        }
        if case == "mixed":
            # The peer needs for rows that end early what it needs for rows of the longest one's length.
            longest, drawn = (median(run[name] for run in mine) for name in ("longest", "gen_tokens_per_step"))
            seconds = median(run["gen_s"] for run in theirs) * longest / workload["new_tokens"]
            measured = {"gen_tok_s": median(run["gen_tok_s"] for run in mine) / (drawn / seconds)}
        found[case] = {"peer": peer, "runs": len(mine), **{name: round(ratio, 3) for name, ratio in measured.items()}}
    return found


# -- one case -------------------------------------------------------------------------------------------------


def one_case(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains for `steps` steps; seconds, tokens and memory of a step."""
    import torch

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembled(case, options, Path(folder))
    if case == "mixed":
        share = ENDS / options.new_tokens
        trainer.policy.encoder = ending(trainer.policy.encoder, range(round(share * options.vocab)))
    else:
        trainer.policy.encoder = ending(trainer.policy.encoder, ())  # nothing ends before the limit
    drawn: list[Any] = []
    sampling: list[float] = []
    sample = trainer.policy.sample

    def timed(*given: Any) -> Any:
        at = time.perf_counter()
        drawn.append(sample(*given))
        sampling.append(time.perf_counter() - at)
        return drawn[-1]

    trainer.policy.sample = timed
    start = reset_peak()
    began, steps, losses = time.perf_counter(), [], []
    for step in range(1, options.steps + 1):
        at = time.perf_counter()
        losses.append(trainer.step(step)["loss"])
        steps.append((time.perf_counter() - at, sampling[-1]))
    wall, highest = time.perf_counter() - began, peak()
    step_s, gen_s = (median(column) for column in zip(*(steps[1:] or steps), strict=True))
    tokens = [int(rollouts.mask.sum()) for rollouts in drawn]
    generated = median(tokens[1:] or tokens)
    return {
        "steps": len(steps), "step_s": round(step_s, 3), "gen_s": round(gen_s, 3), "train_s": round(step_s - gen_s, 3),
        "gen_tokens_per_step": generated, "gen_tok_s": round(generated / gen_s),
        "train_tok_s": round(generated / (step_s - gen_s)), "total_tok_s": round(generated / step_s),
        "longest": median(rollouts.mask.shape[1] for rollouts in drawn[1:] or drawn),
        "wall_s": round(wall, 2), "rss_start_mb": start, "rss_peak_mb": highest, "rss_delta_mb": highest - start,
        "loss_first": losses[0], "loss_last": losses[-1],
        "params_m": round(sum(p.numel() for p in trainer.parameters) / 1e6, 2),
    }  # fmt: skip


def marks_of(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """The most resident MiB of each stage of two steps, above what is resident when training begins.

    The first step makes the optimizer's moments; what a stage leaves behind counts in the next one's mark as well.
    """
    import torch

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembled(case, options, Path(folder))
    trainer.policy.encoder = ending(trainer.policy.encoder, ())
    start, stages = reset_peak(), []

    def noted(name: str, call: Any) -> Any:
        def wrapped(*given: Any, **named: Any) -> Any:
            before = peak() - start
            stages.append(["between", before])
            reset_peak()
            found = call(*given, **named)
            stages.append([name, peak() - start])
            reset_peak()
            return found

        return wrapped

    trainer.policy.sample = noted("sample", trainer.policy.sample)
    trainer._signals = noted("reference, teacher, rewards", trainer._signals)
    trainer._score = noted("forward", trainer._score)
    trainer.optimizer.step = noted("optimizer", trainer.optimizer.step)
    backward = torch.Tensor.backward
    torch.Tensor.backward = noted("backward", backward)  # type: ignore[method-assign]
    highest: list[dict[str, int]] = []
    for step in (1, 2):
        stages.clear()
        trainer.step(step)
        highest.append({name: max(mark for key, mark in stages if key == name) for name, _ in stages})
    weights = sum(p.numel() * p.element_size() for p in trainer.parameters) // 2**20
    return {"parameters_mb": weights, "rss_start_mb": start, "first_step": highest[0], "second_step": highest[1]}


def assembled(case: str, options: argparse.Namespace, folder: Path) -> Any:
    """The trainer of a case, put together as a run on a checkpoint is: from folders and a configuration."""
    from posttrain import settings
    from posttrain.assembly import assemble
    from posttrain.batch import Problem, ProblemSet

    tokenizer = small_tokenizer(options.vocab)
    for name, seed in (("student", 0), ("teacher", 1)):
        small_model(options, tokenizer, seed).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    algorithm = "grpo" if case == "mixed" else case
    overrides = {
        "policy.model": str(folder / "student"),
        "policy.max_completion_tokens": options.new_tokens,
        "steps": options.steps,
        "problems_per_step": options.prompts if algorithm == "grpo" else options.prompts * options.gens,
        "group_size": options.gens if algorithm == "grpo" else 1,
        "micro_batch_size": options.micro,
        "learning_rate": 1e-4,
        "max_grad_norm": 1.0,
        **({} if algorithm == "grpo" else {"teacher": "frozen", "teacher.model": str(folder / "teacher")}),
        **OPTIONS[case],
    }
    config = settings.load(algorithm, "l3", overrides=overrides)
    prompts = [f"What is {17 * i % 97} + {31 * i % 89}? Let us think step by step, then write it."
               for i in range(options.prompts * options.steps * 2)]  # fmt: skip
    rows = tuple(
        Problem(str(i), text, "none", meta={"messages": [{"role": "user", "content": text}]})
        for i, text in enumerate(prompts)
    )
    return assemble(config, 0, problems=ProblemSet(rows, rows[:1], "made here"))


def ending(encoder: Any, ids: Any) -> Any:
    """The encoder with other end tokens."""
    from dataclasses import replace

    return replace(encoder, eos=frozenset(ids))


def small_tokenizer(size: int) -> Any:
    """The peer script's: byte-level BPE of about a thousand ids and a chat template; unused ids fill it to `size`.

    Without them, ours would leave out of every projection the rows of the model that no token has.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = [f"What is {a} {op} {b}? The answer is {a * b + a}. Let us think step by step, then write it."
            for a in range(0, 400, 3) for b in range(7) for op in "+-*/"]  # fmt: skip
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=1024, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))  # fmt: skip
    whole = json.loads(made.to_str())
    known = whole["model"]["vocab"]
    known |= {f"unused{place}": place for place in range(len(known), size)}
    made = Tokenizer.from_str(json.dumps(whole))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (
        "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    return tokenizer


def small_model(options: argparse.Namespace, tokenizer: Any, seed: int) -> Any:
    """The peer script's Qwen3 at its initial weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=options.vocab, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
        num_key_value_heads=max(1, options.hidden // 128), head_dim=64, max_position_embeddings=4096,
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None))  # fmt: skip


# -- memory ---------------------------------------------------------------------------------------------------


def reset_peak() -> int:
    """Starts the count of `peak` anew, where the system lets it, and gives the resident MiB of now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most resident MiB since `reset_peak`."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
