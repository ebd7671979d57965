"""`trainq completion`: the script that teaches a shell to ask trainq what can stand here."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.base.errors import Usage
from trainq.cli import printer
from trainq.cli.answer import Silence
from trainq.cli.line import line_of
from trainq.cli.words import action_of

BASH = """\
# bash completion of trainq; made by `trainq completion bash`
_trainq() {
    local kind
    COMPREPLY=()
    {
        IFS= read -r kind
        mapfile -t COMPREPLY
    } < <(_TRAINQ_COMPLETE=bash COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" "$1" 2>/dev/null)
    case $kind in
        files) compopt -o default -o bashdefault ;;
        open) compopt -o nospace ;;
    esac
}
complete -o nosort -F _trainq trainq
"""
ZSH = """\
#compdef trainq
# zsh completion of trainq; made by `trainq completion zsh`
_trainq() {
    local kind
    local -a found
    found=("${(@f)$(_TRAINQ_COMPLETE=zsh "${words[1]}" "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$found[1]
    found=("${(@)found[2,-1]}")
    case $kind in
        files) _files ;;
        open) _describe -V trainq found -S '' ;;
        words) (( $#found )) && _describe -V trainq found ;;
    esac
}
if [ "$funcstack[1]" = "_trainq" ]; then
    _trainq "$@"
else
    compdef _trainq trainq
fi
"""
FISH = """\
# fish completion of trainq; made by `trainq completion fish`
function __trainq_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (_TRAINQ_COMPLETE=fish $words[1] $words[2..-1] "$current" 2>/dev/null)
    if test "$found[1]" = files
        __fish_complete_path "$current"
    else if test (count $found) -gt 1
        printf '%s\\n' $found[2..-1]
    end
end
complete -c trainq -f -a '(__trainq_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
FILES = {"bash": "trainq.bash", "zsh": "_trainq", "fish": "trainq.fish"}
"""The names under which the scripts lie in completions/, as each shell looks for them."""


def run(
    ctx: typer.Context,
    shell: Annotated[str | None, typer.Argument(metavar="bash|zsh|fish", help="which shell")] = None,
) -> Silence:
    """Print a shell's completion script. For bash: eval "$(trainq completion bash)" in ~/.bashrc."""
    line_of(ctx).refuse_json("trainq completion bash")
    if shell is None:
        raise Usage("of which shell: bash, zsh or fish?", hint="trainq completion bash")
    action_of(shell, tuple(SCRIPTS), "completion")
    printer.write(SCRIPTS[shell].encode())
    printer.flush()
    return Silence()
