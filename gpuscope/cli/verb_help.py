"""The end of each verb's help: two or three examples, and its exit codes.

This module is imported only where help is asked for. The exit codes are defined in
``exit_status.py``, which travels with the agent and therefore holds no texts.
"""

from __future__ import annotations

from argparse import Action
from shutil import get_terminal_size
from textwrap import wrap
from typing import Dict, Iterator, Mapping, Sequence, Tuple

from ..exit_status import ExitStatus

OK, WARNINGS, PROBLEMS = ExitStatus.OK, ExitStatus.WARNINGS, ExitStatus.PROBLEMS
UNCHECKED = ExitStatus.UNCHECKED

EXAMPLES: Dict[str, Tuple[Tuple[str, str], ...]] = {
    "": (
        ("", "everything on this machine, live"),
        ("--oneline --watch 5", "one line for a status bar, every 5 s"),
    ),
    "doctor": (
        ("", "check this environment and every trainer here"),
        ("slurm-42.out", "why a job ended, from its log"),
        ("logs/", "which rank of a dead job failed first, from all that it left"),
        ("train.py", "mistakes in a script, before it runs"),
    ),
    "devices": (
        ("", "the GPUs of this machine"),
        ("user@host --json", "the GPUs of another host, as JSON"),
    ),
    "ps": (
        ("user@host", "GPU processes and trainers of another host"),
        ("--watch 5", "the same for this machine, every 5 s"),
    ),
    "attach": (
        ("", "what runs here, and how to attach to each"),
        ("4242 --inject", "attach a probe to a running trainer, and open it"),
        ("user@node-1 user@node-2", "two hosts on one screen"),
    ),
    "run": (
        ("train.py --epochs 3", "a script, with the active environment's Python"),
        ("-- torchrun --nproc-per-node 2 train.py", "any command, with a probe in each rank"),
        ("--on-call -- torchrun train.py", "the same, ready for a post-mortem"),
    ),
    "enable": (
        ("--dry-run", "show what would be written, and where"),
        ("--python /opt/venv", "an environment other than the active one"),
    ),
    "disable": (
        ("--dry-run", "show what would be removed"),
        ("--python /opt/venv", "from an environment other than the active one"),
    ),
    "wait": (
        ("4242 --timeout 86400", "until a training ends or stalls, a day at most"),
        ("--free 40GiB --gpus 2", "until two GPUs have this much free; prints which"),
    ),
    "snapshot": (
        ("oom.pickle --at peak", "what was allocated at the peak"),
        ("before.pickle after.pickle", "what grew between the two"),
        ("4242 -o now.pickle", "take one of a running trainer"),
    ),
    "why": (
        ("", "where the time of the training here goes"),
        ("4242 --no-look", "of one trainer (or torchrun's ranks), at once"),
        ("user@host:4242 --json", "on another host, as JSON"),
        ("/tmp/gpuscope-1000/4242-81230.box", "of a trainer that has ended"),
    ),
    "lab": (
        ("--model gpt --amp bf16", "train in the TUI"),
        ("--steps 100 --json", "train headless, and print a JSON document"),
    ),
    "lab sweep": (
        ("--vary batch=8,16 --vary amp=off,bf16 --steps 50", "four configurations"),
        ("--vary compile=off,default --dry-run", "what would run, and what cannot run"),
    ),
    "lab claims": (
        ("--list", "the claims, without measuring"),
        ("--only amp-speed,tiny-model --quick", "two of them, fewer repeats"),
    ),
    "lab runs": (
        ("--limit 5", "the newest five"),
        ("compare 3 4", "run 4 against run 3"),
    ),
    "lab runs list": (
        ("", "the newest 30"),
        ("--limit 5 --json", "the newest five, as JSON"),
    ),
    "lab runs show": (
        ("12", "one run"),
        ("sweep-1126-0930-5f1c", "the table of a sweep"),
    ),
    "lab runs compare": (
        ("3 4", "run 4 against run 3"),
        ("before.gsr after.gsr --samples-per-step 32", "two recordings of your own trainer"),
    ),
    "lab runs export": (
        ("-o runs.csv", "all runs"),
        ("3 4 --format json", "two runs, on standard output"),
    ),
    "lab runs remove": (
        ("12", "one run"),
        ("--group sweep-1126-0930-5f1c", "all runs of a sweep"),
    ),
    "lab runs set-aside": (("", "keep a damaged ledger under another name"),),
    "lab pitfall": (
        ("slow-input", "a training with slow input"),
        ("slow-input --cured", "the same one, fixed"),
    ),
    "tune": (
        ("mine:factory --budget 10m", "your own model, ten minutes of trials"),
        (
            "gpt-small --vary amp=off,bf16 --vary compile=off,default",
            "vary only these two settings",
        ),
        (
            "mine:factory --free-batch --price 2.5 -o tune.json",
            "with any batch size, and what it costs",
        ),
        (
            "gpt-small --goal cost --price 2.5 --price-energy 0.30",
            "the cheapest settings, by the hour and the kilowatt-hour",
        ),
    ),
    "predict": (
        ("--model gpt-small --gpu 4090 --what-if", "does it fit, and what would help"),
        ("models:make --batch 32 --capacity 24GiB", "your own model"),
    ),
    "check": (
        ("--base origin/main", "all trainings, and which change added memory"),
        ("gpt --update", "write the baseline of one training"),
    ),
    "record": (
        ("night.gsr --duration 28800", "eight hours of this machine"),
        ("node.gsr --from user@host --redact", "another host, without names"),
    ),
    "replay": (
        ("night.gsr", "play it from the start"),
        ("night.gsr --speed 10", "ten times as fast"),
    ),
    "report": (
        ("night.gsr", "what happened, as night.html"),
        ("oom.pickle why.json -o page.html", "several results on one page"),
        ("- < doctor.json", "the JSON of a verb, as report.html"),
        ("sweep-1126-0930-5f1c --redact", "a sweep of the ledger, without names"),
    ),
    "export": (
        ("", "serve http://127.0.0.1:9400/metrics"),
        ("--textfile /var/lib/node_exporter/gpuscope.prom", "write a file instead"),
    ),
    "completion": (
        ("bash > ~/.local/share/bash-completion/completions/gpuscope", "for bash"),
        ("zsh > ~/.zfunc/_gpuscope", "for zsh: ~/.zfunc must be in fpath, before compinit"),
        ("fish > ~/.config/fish/completions/gpuscope.fish", "for fish"),
    ),
}
"""For each command, its arguments in the examples and what each example does."""

EXIT_CODES: Dict[str, Dict[int, str]] = {
    "": {
        OK: "quit by the user, or printed",
        PROBLEMS: "a GPU is faulty or lost (with --oneline, or without a usable terminal)",
        UNCHECKED: "the driver did not answer (in the same two cases)",
    },
    "doctor": {
        OK: "nothing is wrong, or nothing as severe as --fail-on",
        WARNINGS: "warnings",
        PROBLEMS: "problems",
        UNCHECKED: "something could not be checked",
    },
    "devices": {
        OK: "all is well",
        WARNINGS: "warnings",
        PROBLEMS: "a GPU is faulty or lost",
        UNCHECKED: "the driver did not answer",
    },
    "ps": {
        OK: "everything is listed",
        UNCHECKED: "the driver, a GPU or a host did not answer, or there is no NVIDIA driver; the "
        "rest is listed",
    },
    "attach": {
        OK: "attached, detached or listed, or the TUI was quit",
        PROBLEMS: "refused, busy or not confirmed",
        UNCHECKED: "it could not be checked",
    },
    "enable": {
        OK: "enabled",
        WARNINGS: "with --status: not enabled, or by another version",
        PROBLEMS: "refused or failed; with --status: changed or incomplete",
        UNCHECKED: "with --status: it could not be checked",
    },
    "disable": {OK: "not enabled any more", PROBLEMS: "refused or failed"},
    "wait": {
        OK: "it has ended, or enough memory is free (standard output says on which GPUs)",
        UNCHECKED: "it cannot be watched",
        ExitStatus.STALLED: "it is stalled",
        ExitStatus.NOT_FINITE: "its loss is not a number, or infinite",
        ExitStatus.SLOWER: "with --slower: its steps have become slower",
        ExitStatus.TIMED_OUT: "the time limit was reached",
    },
    "snapshot": {
        OK: "read or taken",
        WARNINGS: "read in part; the output says what is missing",
        PROBLEMS: "with --what-if: it would not have fit",
        UNCHECKED: "could not be read or taken",
    },
    "why": {
        OK: "nothing makes it notably slow; possible gains are listed",
        WARNINGS: "the doctor would warn of something, it hangs, or others wait for a rank",
        UNCHECKED: "the time is not known",
    },
    "lab": {
        OK: "all steps are done, or it was stopped and had no --steps",
        PROBLEMS: "the training failed, was cut short or refused",
        UNCHECKED: "no Python with torch",
    },
    "lab sweep": {
        OK: "every run succeeded",
        WARNINGS: "some failed or were refused",
        PROBLEMS: "all failed, or it was stopped",
        UNCHECKED: "no Python with torch, or the ledger cannot be used",
    },
    "lab claims": {
        OK: "each claim is decided, or cannot be tested here",
        WARNINGS: "some are undecided",
        UNCHECKED: "no Python with torch, or nothing can be measured",
    },
    "lab runs": {
        OK: "done",
        PROBLEMS: "there is no such run or sweep",
        UNCHECKED: "the ledger or a recording cannot be read",
    },
    "lab runs list": {
        OK: "listed",
        UNCHECKED: "the ledger cannot be read, or the file not written",
    },
    "lab runs show": {
        OK: "shown",
        PROBLEMS: "there is no such run or sweep",
        UNCHECKED: "the ledger cannot be read",
    },
    "lab runs compare": {
        OK: "compared",
        PROBLEMS: "there is no such run, sweep or file",
        UNCHECKED: "the ledger or a recording cannot be read",
    },
    "lab runs export": {
        OK: "written",
        PROBLEMS: "there is no such run or sweep",
        UNCHECKED: "the ledger cannot be read",
    },
    "lab runs remove": {
        OK: "removed",
        PROBLEMS: "there is no such run or sweep",
        UNCHECKED: "the ledger cannot be written",
    },
    "lab runs set-aside": {OK: "renamed", UNCHECKED: "it could not be renamed"},
    "lab pitfall": {
        OK: "listed; for a training its own exit code",
        UNCHECKED: "no scripts, no Python with torch, or too few GPUs",
    },
    "tune": {
        OK: "better settings were found and proved",
        WARNINGS: "the baseline is the best, or the budget ended the search early",
        PROBLEMS: "it was stopped; the same command continues",
        UNCHECKED: "nothing runs, there is no Python with torch, or the ledger cannot be used",
    },
    "predict": {
        OK: "it fits, or no GPU was given",
        WARNINGS: "too close to call",
        PROBLEMS: "it does not fit",
        UNCHECKED: "it could not be predicted",
    },
    "check": {
        OK: "all budgets hold, or nothing is as severe as --fail-on",
        WARNINGS: "warnings: too close to call, or no baseline to compare with",
        PROBLEMS: "a budget is broken",
        UNCHECKED: "a training could not be predicted, or the baseline could not be read",
    },
    "record": {
        OK: "recorded as requested",
        PROBLEMS: "it ended early; the recording so far is kept",
        UNCHECKED: "nothing was recorded",
    },
    "replay": {OK: "quit by the user", UNCHECKED: "the file is not a readable recording"},
    "report": {
        OK: "written",
        WARNINGS: "written, but a part of the file could not be read; the page says which",
        UNCHECKED: "nothing could be read; no page was written",
    },
    "export": {
        OK: "ended by SIGTERM or Ctrl-C",
        UNCHECKED: "could not serve, write or read",
    },
    "completion": {OK: "printed"},
    "run": {},
}
USAGE_TEXT = "the command line is not valid"
RUN_TEXT = "The exit code is the trainer's own; 64 if it could not be started."


def exit_codes(command: str) -> Dict[int, str]:
    """Return the exit codes of a command in order, with what each of them says."""
    return dict(sorted({**EXIT_CODES[command], ExitStatus.USAGE: USAGE_TEXT}.items()))


def short_usage(prog: str, actions: Sequence[Action], verbs: bool) -> str:
    """Return a line of usage that names the positional arguments, and leaves the options out."""
    words = [prog, "[OPTIONS]"]
    for one in actions:
        if not one.option_strings:
            name = one.metavar or f"{{{','.join(one.choices or ())}}}"
            words += [str(name)] * (one.nargs in (None, "+"))
            if one.nargs is not None:
                words.append(f"[{name}]" if one.nargs == "?" else f"[{name} ...]")
    also = f"\n       {prog} VERB [OPTIONS]" if verbs else ""
    return (" ".join(words) + also).replace("%", "%%")


def first_example(prog: str) -> str:
    """Return a line with an example of a command, which has arguments; "" where there is none."""
    words = next((one for one, _ in EXAMPLES.get(prog[len("gpuscope") :].strip(), ()) if one), "")
    return f"Example: {prog} {words}\n" if words else ""


LEAST_WIDTH, LEAST_TEXT = 40, 24
"""Columns of a terminal, and cells beside a name, with less of which no text is wrapped."""


def _wrapped(rows: Mapping[str, str], wide: int) -> Iterator[str]:
    """Return names and texts in two columns, as wide as the terminal."""
    room = max(LEAST_WIDTH, get_terminal_size().columns) - wide - 4
    for name, text in rows.items():
        if room < LEAST_TEXT:  # below the name, where that leaves no room beside it
            yield f"  {name}"
            yield from (f"      {line}" for line in wrap(text, room + wide - 2))
            continue
        for at, line in enumerate(wrap(text, room) or [""]):
            yield f"  {name if at == 0 else '':{wide}}  {line}".rstrip()


def ending(prog: str, verbs: Mapping[str, str]) -> str:
    """Return the end of a command's help, "" for one that is not in the tables.

    ``verbs`` are its subcommands, each with its summary.
    """
    parts = []
    if verbs:
        wide = max(map(len, verbs))
        parts.append(["verbs:", *_wrapped(verbs, wide)])
    command = prog[len("gpuscope") :].strip()
    if command in EXAMPLES:
        typed = {f"{prog} {words}".strip(): text for words, text in EXAMPLES[command]}
        wide = max(map(len, typed))
        parts.append(["examples:", *_wrapped(typed, wide)])
        if command == "run":
            parts.append([RUN_TEXT])
        else:
            rows = {f"{int(code):3}": text for code, text in exit_codes(command).items()}
            parts.append(["exit codes:", *_wrapped(rows, 3)])
    if not command:
        parts.append(["`gpuscope help VERB` shows more."])
    return "".join("\n" + "\n".join(part) + "\n" for part in parts)
