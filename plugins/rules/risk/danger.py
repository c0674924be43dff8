"""What a shell command would destroy. Each test is a small function of a `Run`; what they can't know is no finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

from tandem.plugins.rules._paths import Project, of_system, temporary, whole_folder
from tandem.plugins.rules._runs import SHELLS, Run, path_of, runs_of
from tandem.plugins.rules._shell import Pipeline, Script, Word, parse
from tandem.plugins.rules._words import words
from tandem.plugins.rules._writes import DELETERS, written_words
from tandem.plugins.rules.risk.sql import destroys as sql_destroys


@dataclass(frozen=True, slots=True)
class Danger:
    reason: str
    """A key of `WHY`."""
    asks: tuple[str, ...]
    """Texts of a user that ask for exactly this."""


WHY = {
    "delete_tree": "it deletes a whole tree: the project itself, a home folder, the system or everything in a folder",
    "delete_outside": "it deletes files outside the project",
    "delete_system": "it deletes files of the operating system",
    "delete_history": "it deletes the repository's history (`.git`)",
    "write_system": "it writes to the operating system's own files",
    "write_credentials": "it changes a file that holds credentials",
    "device": "it writes to a disk or another device",
    "git_discard": "it throws away changes that are not committed, for good",
    "git_force": "it overwrites or deletes history on the remote",
    "permissions": "it changes the permissions or the owner of a whole tree that is not a part of the project",
    "piped_download": "it runs a script from the network that nobody has read",
    "sql_drop": "it deletes whole tables or databases",
    "kill_all": "it ends processes that it did not start",
    "shutdown": "it shuts the machine down",
    "fork_bomb": "it starts processes without end",
    "service": "it deletes something outside this machine, or all data of a service",
}
"""Reason -> what a command of this kind does, for the one who wrote it."""

FETCHERS = frozenset(("curl", "wget", "fetch", "aria2c"))
INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php", "source", "."}


def dangers(command: str, project: Project, folder: str = "") -> list[Danger]:
    """What is dangerous in a shell command that runs in `folder`."""
    script = parse(command)
    found = list(_fork_bomb(script))
    for run in runs_of(script, folder):
        for test in (_writes, TESTS.get(run.name), _made_anew, _service):
            found += test(run, project) if test else ()
    return [Danger(one.reason, (*one.asks, command)) for one in found]


def path_danger(place: str, project: Project) -> str | None:
    """Why a file that is written at a place, as `Project.at` gives it, should not be; None when nothing is wrong."""
    if project.secret(place):
        return "write_credentials"
    if project.inside(place) or temporary(place):
        return None
    if place.startswith("/dev/") and of_system(place):
        return "device"
    return "write_system" if of_system(place) else None


# --------------------------------------------------------------------------------------------------------- files


def _writes(run: Run, project: Project) -> Iterator[Danger]:
    """Redirections, and programs that write to a file that they are given."""
    for word in written_words(run):
        path = path_of(word, run.folder)
        reason = path_danger(project.at(path), project) if path is not None else None
        if reason:
            yield Danger(reason, _asks(run))


def _remove(run: Run, project: Project) -> Iterator[Danger]:
    recursive = run.name == "rm" and run.has("rR", "--recursive")
    for word in run.operands:
        reason = _delete(word, run.folder, project, recursive)
        if reason:
            yield Danger(reason, _asks(run))
    if run.listed and run.before and run.before[-1].name == "find":
        yield from _find_starts(run.before[-1], project)


def _delete(word: Word, folder: str | None, project: Project, recursive: bool) -> str | None:
    """Why what a word names should not be deleted."""
    path = path_of(word, folder)
    if path is None:
        return None
    everything = whole_folder(path) if word.glob or path.endswith("/") else path
    place = project.at(everything)
    if recursive and project.tree(place):
        return "delete_tree"
    if recursive and place == f"{project.root}/.git":
        return "delete_history"
    if project.secret(place):
        return "write_credentials"
    if project.inside(place):
        return None
    return "delete_system" if of_system(place) else "delete_outside" if project.outside(place) else None


NARROWING = words(
    """
    -name -iname -path -ipath -regex -iregex -mtime -mmin -newer -size -empty -user -atime -ctime -maxdepth
    -perm -links -inum -cmin -amin
    """
)


def _find(run: Run, project: Project) -> Iterator[Danger]:
    """`find ... -delete`, and `find ... -exec rm`."""
    texts = [word.text for word in run.words]
    executed = [program for action, program in pairwise(texts) if action.startswith("-exec")]
    if "-delete" in texts or DELETERS & set(executed):
        yield from _find_starts(run, project)


def _find_starts(run: Run, project: Project) -> Iterator[Danger]:
    """Where a `find` whose findings are deleted begins. With a condition it is no whole tree."""
    starts: list[Word] = []
    for word in run.words:
        if word.text.startswith(("-", "(", "!")):
            if word.text not in ("-H", "-L", "-P"):
                break
            continue
        starts.append(word)
    narrowed = any(word.text in NARROWING for word in run.words)
    for word in starts or [Word(".")]:
        reason = _delete(word, run.folder, project, not narrowed)
        if reason:
            yield Danger(reason, _asks(run))


def _permissions(run: Run, project: Project) -> Iterator[Danger]:
    if not run.has("R", "--recursive"):
        return
    for word in run.operands if run.has("", "--reference") else run.operands[1:]:
        path = path_of(word, run.folder)
        if path is None:
            continue
        place = project.at(whole_folder(path) if word.glob else path)
        inside = project.inside(place) and run.name == "chmod"  # a project's own folder may well be opened
        if not inside and (project.tree(place) or of_system(place) or project.outside(place)):
            yield Danger("permissions", _asks(run))


# ----------------------------------------------------------------------------------------------------------- git


def _git(run: Run, project: Project) -> Iterator[Danger]:
    words = list(run.words)
    while words and words[0].text.startswith("-"):  # git's own options
        words = words[2:] if words[0].text in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else words[1:]
    if not words:
        return
    name, sub = words[0].text, Run("git", tuple(words[1:]))
    operands = [word.text for word in sub.operands if word.known]
    asks = _asks(run)
    match name:
        case "push":
            forced = sub.has("f", "--force", "--mirror", "--delete") or sub.has("d")
            if forced or any(text.startswith(("+", ":")) and len(text) > 1 for text in operands[1:]):
                yield Danger("git_force", (*asks, *(FORCED if sub.has("f", "--force") else ())))
        case "reset" if sub.has("", "--hard"):
            yield Danger("git_discard", (*asks, "git reset --hard"))
        case "clean" if sub.has("f", "--force") and not sub.has("n", "--dry-run"):
            yield Danger("git_discard", (*asks, "git clean -fdx", "git clean -fd"))
        case "checkout" if ("--" in [w.text for w in words] or "-f" in sub.options) and _whole(operands):
            yield Danger("git_discard", asks)
        case "checkout" if operands in (["."], ["*"]):
            yield Danger("git_discard", asks)
        case "restore" if _whole(operands) and not (sub.has("S", "--staged") and not sub.has("W", "--worktree")):
            yield Danger("git_discard", asks)
        case "stash" if operands[:1] == ["clear"]:
            yield Danger("git_discard", asks)
        case "filter-branch" | "filter-repo":
            yield Danger("git_force", (*asks, f"git {name}"))


FORCED = ("git push --force", "git push -f", "force push", "force-push")


def _whole(operands: Seq[str]) -> bool:
    return any(operand in (".", "./", "*", ":/", ":/*") for operand in operands)


# -------------------------------------------------------------------------------------------- the machine, the net


def _interpreter(run: Run, project: Project) -> Iterator[Danger]:
    """A shell or another interpreter that reads its script from the network."""
    takes_code = run.has("c") or run.name in ("source", ".")
    from_pipe = any(run_.name in FETCHERS or _starts(run_, FETCHERS) for run_ in run.before)
    reads_pipe = not run.operands or run.operands[0].text in ("-", "/dev/stdin") or run.has("s")
    inner = any(_fetches(pipeline) for word in run.words for pipeline in word.inner)
    takes_file = bool(run.operands) and run.operands[0].text == "/dev/fd/63"
    if (from_pipe and reads_pipe and not takes_code) or (inner and (takes_code or takes_file)):
        yield Danger("piped_download", (" | ".join(one.text for one in (*run.before, run)),))


def _fetches(pipeline: Pipeline) -> bool:
    return any(word.text.rpartition("/")[2] in FETCHERS for command in pipeline.commands for word in command.words[:2])


def _starts(run: Run, names: frozenset[str]) -> bool:
    return run.name in ("sudo", "env", "timeout") and any(word.text in names for word in run.words)


def _kill(run: Run, project: Project) -> Iterator[Danger]:
    texts = [word.text for word in run.words]
    if texts[:1] in (["-s"], ["-n"], ["--signal"]):
        texts = texts[2:]
    elif texts and texts[0].startswith("-") and len(texts) > 1:
        texts = texts[1:]
    if "-1" in texts:
        yield Danger("kill_all", _asks(run))


def _killall(run: Run, project: Project) -> Iterator[Danger]:
    everyone = run.name == "pkill" and (run.has("", "--uid", "--euid") or run.has("uU")) and len(run.operands) <= 1
    if run.name == "killall5" or everyone or (run.name == "pkill" and run.operands and run.operands[0].text == "."):
        yield Danger("kill_all", _asks(run))


def _down(run: Run, project: Project) -> Iterator[Danger]:
    texts = [word.text for word in run.words]
    harmless = run.has("c", "--help", "--version") if run.name == "shutdown" else run.has("", "--help", "--version")
    going = run.name in ("shutdown", "reboot", "halt", "poweroff") and not harmless
    going |= run.name in ("init", "telinit") and texts[:1] in (["0"], ["6"])
    verbs = {"poweroff", "reboot", "halt", "kexec", "rescue", "emergency", "soft-reboot"}
    if going or (run.name == "systemctl" and verbs & set(texts)):
        yield Danger("shutdown", _asks(run))


def _made_anew(run: Run, project: Project) -> Iterator[Danger]:
    """File systems and partition tables: `mkfs.ext4`, `wipefs`, ..."""
    if run.name.partition(".")[0] in MAKERS and not run.has("", "--help", "--version", "--no-act"):
        yield Danger("device", _asks(run))


MAKERS = frozenset(("mkfs", "mke2fs", "mkswap", "wipefs", "blkdiscard", "sgdisk", "newfs"))


def _service(run: Run, project: Project) -> Iterator[Danger]:
    """Services' commands that delete."""
    words = [word.text.lower() for word in run.operands] if run.name in SERVICES else []
    for verbs, option in SERVICES.get(run.name, ()):
        wanted = verbs.split()
        if words[: len(wanted)] == wanted and (not option or run.has(option[1:] if len(option) == 2 else "", option)):
            yield Danger("service", _asks(run, f"{run.name} {verbs}".strip()))


SERVICES: Mapping[str, Seq[tuple[str, str]]] = {
    "terraform": [("destroy", "")],
    "tofu": [("destroy", "")],
    "pulumi": [("destroy", "")],
    "kubectl": [("delete namespace", ""), ("delete ns", ""), ("delete", "--all")],
    "helm": [("uninstall", "")],
    "docker": [("volume rm", ""), ("volume prune", ""), ("system prune", "--volumes")],
    "gh": [("repo delete", "")],
    "npm": [("unpublish", "")],
    "aws": [("s3 rb", ""), ("s3 rm", "--recursive")],
    "gsutil": [("rm", "-r")],
    "gcloud": [("projects delete", "")],
    "redis-cli": [("flushall", ""), ("flushdb", "")],
    "dropdb": [("", "")],
    "crontab": [("", "-r")],
    "userdel": [("", "-r")],
}
"""Program -> its first words in lower case, and an option that must be there besides."""


def _database(run: Run, project: Project) -> Iterator[Danger]:
    """SQL that a database's client is given: by an option, as an argument, or on its standard input."""
    texts = [word.text for word in run.words if word.known and " " in word.text.strip()]
    texts += [option.partition("=")[2] for option in run.options if "=" in option]
    texts += [option[2:] for option in run.options if option.startswith(("-c", "-e"))]
    for text in [*texts, run.stdin or ""]:
        for statement in sql_destroys(text):
            yield Danger("sql_drop", (statement, *_asks(run)))
    if run.name == "mysqladmin" and "drop" in [word.text for word in run.operands]:
        yield Danger("sql_drop", _asks(run))


def _fork_bomb(script: Script) -> Iterator[Danger]:
    """A function that pipes itself into itself: `f() { f | f & }; f`."""
    for pipeline in script.pipelines if script.functions else ():
        names = [one.words[0].text for one in pipeline.commands if one.words]
        if any(names.count(name) > 1 for name in script.functions):
            yield Danger("fork_bomb", ())
            return


def _asks(run: Run, *more: str) -> tuple[str, ...]:
    """What a user would write to ask for a run: the command as it stands, and shorter ways to say it."""
    return run.text, *(text for text in more if " " in text)


Test = Callable[[Run, Project], Iterator[Danger]]

TESTS: dict[str, Test] = {
    **dict.fromkeys(DELETERS, _remove),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _permissions),
    **dict.fromkeys(INTERPRETERS, _interpreter),
    **dict.fromkeys(("pkill", "killall5"), _killall),
    **dict.fromkeys(("shutdown", "reboot", "halt", "poweroff", "init", "telinit", "systemctl"), _down),
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3", "duckdb", "sqlcmd", "mysqladmin"), _database),
    "find": _find,
    "git": _git,
    "kill": _kill,
}
"""Program -> the test of its runs."""
