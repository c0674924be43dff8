"""The programs that a shell command runs, seen through what only starts others: `sudo`, `env A=b`, `timeout 5`,
`xargs`, `bash -c "..."`, `eval`, `find -exec`, a script that is piped into a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

from tandem.plugins.rules._shell import ASSIGNMENT, Command, Pipeline, Redirect, Script, Word, parse
from tandem.plugins.rules._words import words

DEEPEST = 6
"""`bash -c` within `bash -c` is followed so far."""
UNKNOWN = Word("", known=False)

STARTERS: dict[str, tuple[str, int]] = {
    "sudo": ("ugpCTrtUhDR", 0),
    "doas": ("uC", 0),
    "env": ("uCS", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "nice": ("n", 0),
    "ionice": ("cnpPu", 0),
    "time": ("fo", 0),
    "timeout": ("ks", 1),
    "stdbuf": ("ioe", 0),
    "exec": ("a", 0),
    "command": ("", 0),
    "builtin": ("", 0),
    "busybox": ("", 0),
    "xargs": ("nIPLdsaE", 0),
}
"""Program that runs another -> its one-letter options that take a value, and how many words stand before the other's
name."""
LONG_WITH_VALUE = words(
    """
    --user --group --signal --kill-after --adjustment --max-args --max-procs --arg-file --unset --chdir
    --prompt --host --replace --delimiter --class --classdata
    """
)
SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh", "ash", "fish"))
PRINTERS = frozenset(("echo", "printf"))


@dataclass(frozen=True, slots=True)
class Run:
    """A program with its arguments."""

    name: str
    """Without the folder that it lies in."""
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    folder: str | None = ""
    """Where it runs: a path, empty for where the shell starts, with `~` in front in the home folder; None = unknown."""
    before: tuple[Run, ...] = ()
    """What writes into it through pipes, first to last."""
    listed: bool = False
    """More arguments come that are not known: from `xargs` or `find -exec`."""
    stdin: str | None = None
    """What it reads, when the command says it."""

    @property
    def text(self) -> str:
        """Name and arguments with single blanks, as a person would write them."""
        return " ".join([self.name, *(word.text for word in self.words)])

    @property
    def options(self) -> list[str]:
        """Arguments that begin with `-`, up to `--`."""
        texts = [word.text for word in self.words]
        texts = texts[: texts.index("--")] if "--" in texts else texts
        return [text for text in texts if text.startswith("-") and len(text) > 1]

    @property
    def operands(self) -> list[Word]:
        """The other arguments, and all that stand behind `--`."""
        found, plain = [], False
        for word in self.words:
            if not plain and word.text == "--":
                plain = True
            elif plain or not word.text.startswith("-") or word.text == "-" or not word.known:
                found.append(word)
        return found

    def has(self, short: str, *long: str) -> bool:
        """Whether an option is given: a letter, also within a cluster, or a long one with or without its value."""
        return any(
            option.partition("=")[0] in long
            or (short != "" and not option.startswith("--") and any(letter in option[1:] for letter in short))
            for option in self.options
        )


def runs(text: str, folder: str | None = "", depth: int = 0) -> Iterator[Run]:
    """Every program that the text runs, in its order, what only starts another left out."""
    return runs_of(parse(text), folder, depth)


def runs_of(script: Script, folder: str | None = "", depth: int = 0) -> Iterator[Run]:
    """The same for a text that is parsed already."""
    folders: dict[tuple[int, ...], str | None] = {(): folder}
    for pipeline in script.pipelines:
        here = _folder_of(pipeline.scope, folders)
        before = tuple(_plain(command, here) for command in pipeline.fed_by if command.words)
        for command in pipeline.commands:
            run = _plain(command, here)
            run = replace(run, before=before, stdin=run.stdin or _printed(before))
            yield from _started(run, depth)
            before = (*before, run)
        if len(pipeline.commands) == 1:
            _change(pipeline, here, folders)


def _printed(before: Seq[Run]) -> str | None:
    """What the last of these writes into the pipe, when it only repeats its words or its own input."""
    last = before[-1] if before else None
    if last is None:
        return None
    if last.name == "cat" and not last.operands:
        return last.stdin
    if last.name not in PRINTERS or not all(word.known for word in last.words):
        return None
    return " ".join(word.text for word in last.words if not re.fullmatch(r"-[neE]+", word.text))


def _plain(command: Command, folder: str | None) -> Run:
    if not command.words:
        return Run("", (), command.redirects, folder)
    name = command.words[0]
    base = PurePosixPath(name.text).name if name.known else ""
    return Run(base, command.words[1:], command.redirects, folder, stdin=command.stdin)


def joined(folder: str | None, path: str) -> str | None:
    """`path` as seen from `folder`; None when that is not known."""
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", path):
        return path
    return None if folder is None else f"{folder}/{path}" if folder else path


def path_of(word: Word, folder: str | None) -> str | None:
    """The path that a word names, `~` in front for the home folder; None when it is not known."""
    if not word.known:
        return None
    if word.home:
        return word.text
    text = f"./{word.text}" if word.text.startswith("~") else word.text  # a quoted ~ is only a name
    return joined(folder, text)


# ------------------------------------------------------------------------------------------------------- folders


def _folder_of(scope: tuple[int, ...], folders: dict[tuple[int, ...], str | None]) -> str | None:
    while scope not in folders:
        scope = scope[:-1]
    return folders[scope]


def _change(pipeline: Pipeline, here: str | None, folders: dict[tuple[int, ...], str | None]) -> None:
    words = pipeline.commands[0].words
    if not words or words[0].text not in ("cd", "pushd"):
        return
    target = [word for word in words[1:] if word.text not in ("-L", "-P", "-e", "--")]
    if not target:
        folders[pipeline.scope] = "~"
    else:
        folders[pipeline.scope] = None if target[0].text == "-" else path_of(target[0], here)


# --------------------------------------------------------------------------------------------- what starts others


def _started(run: Run, depth: int) -> Iterator[Run]:
    """What a command runs in the end: itself, or what it starts."""
    if depth > DEEPEST:
        return
    if run.name in STARTERS:
        yield from _starter(run, depth)
    elif run.name in SHELLS:
        yield from _shell(run, depth)
    elif run.name == "eval" or run.name == "trap":
        words = run.words if run.name == "eval" else run.words[:1]
        yield from _text(" ".join(word.text for word in words) if all(w.known for w in words) else None, run, depth)
    elif run.name in ("su", "runuser"):
        yield from _text(_value(run.words, "c"), run, depth)
    elif run.name == "ssh":
        yield from _remote(run, depth)
    else:
        yield run
        if run.name == "find":
            yield from _executed(run, depth)


def _text(text: str | None, run: Run, depth: int) -> Iterator[Run]:
    if text is not None:
        yield from runs(text, run.folder, depth + 1)


def _starter(run: Run, depth: int) -> Iterator[Run]:
    valued, skipped = STARTERS[run.name]
    if run.name == "command" and run.has("vV"):
        return
    rest = _behind_options(run.words, valued)
    while rest and run.name in ("env", "sudo", "doas") and ASSIGNMENT.match(rest[0].text):
        rest = rest[1:]
    rest = rest[skipped:]
    if not rest:
        if run.redirects:  # `exec > file`
            yield replace(run, name="", words=())
        return
    name = PurePosixPath(rest[0].text).name if rest[0].known else ""
    if run.name == "xargs":
        given = [Word(text, home=text.startswith("~")) for text in (run.stdin or "").split()]
        inner = replace(run, name=name, words=(*rest[1:], *given), listed=run.stdin is None, stdin=None)
    else:
        inner = replace(run, name=name, words=tuple(rest[1:]))
    yield from _started(inner, depth + 1)


def _behind_options(words: Seq[Word], valued: str) -> list[Word]:
    """The words behind a program's options. `valued` are the letters of options that take a value."""
    rest = list(words)
    while rest and rest[0].known and rest[0].text.startswith("-") and len(rest[0].text) > 1:
        option = rest.pop(0).text
        if option == "--":
            break
        if option in LONG_WITH_VALUE:
            rest = rest[1:]
        elif not option.startswith("--"):
            place = next((i for i, letter in enumerate(option) if i and letter in valued), None)
            if place == len(option) - 1:
                rest = rest[1:]
    return rest


def _shell(run: Run, depth: int) -> Iterator[Run]:
    """A shell: what its `-c` or its standard input says, and the shell itself for who looks at pipes."""
    yield run
    command = _value(run.words, "c")
    if command is not None:
        yield from _text(command, run, depth)
    elif not run.operands:
        yield from _text(run.stdin, run, depth)


def _value(given: Seq[Word], letter: str) -> str | None:
    """The word behind the option with this letter, alone or at the end of a cluster."""
    for word, following in pairwise(given):
        if re.fullmatch(rf"-[a-zA-Z]*{letter}[a-zA-Z]*|--command", word.text):
            return following.text if following.known else None
    return None


def _remote(run: Run, depth: int) -> Iterator[Run]:
    rest = _behind_options(run.words, "bcDEeFIiJLlmOopQRSWw")[1:]
    if rest and all(word.known for word in rest):
        yield from runs(" ".join(word.text for word in rest), None, depth + 1)


def _executed(run: Run, depth: int) -> Iterator[Run]:
    """The commands of `find ... -exec COMMAND ;`."""
    texts = [word.text for word in run.words]
    for place, text in enumerate(texts):
        if text in ("-exec", "-execdir", "-ok", "-okdir"):
            ends = [end for end in range(place + 1, len(texts)) if texts[end] in (";", "+")]
            words = [
                UNKNOWN if "{}" in word.text else word
                for word in run.words[place + 1 : ends[0] if ends else len(texts)]
            ]
            if words:
                inner = Run(PurePosixPath(words[0].text).name, tuple(words[1:]), (), run.folder, (), True)
                yield from _started(inner, depth + 1)
