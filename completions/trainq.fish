# fish completion of trainq; made by `trainq completion fish`
function __trainq_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (_TRAINQ_COMPLETE=fish $words[1] $words[2..-1] "$current" 2>/dev/null)
    if test "$found[1]" = files
        __fish_complete_path "$current"
    else if test (count $found) -gt 1
        printf '%s\n' $found[2..-1]
    end
end
complete -c trainq -f -a '(__trainq_complete)'
