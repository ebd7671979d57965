# bash completion of trainq; made by `trainq completion bash`
_trainq() {
    local kind
    COMPREPLY=()
    {
        IFS= read -r kind
        mapfile -t COMPREPLY
    } < <(_TRAINQ_COMPLETE=bash COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \
        COMP_WORDBREAKS="$COMP_WORDBREAKS" "$1" 2>/dev/null)
    case $kind in
        files) compopt -o default -o bashdefault ;;
        open) compopt -o nospace ;;
    esac
}
complete -o nosort -F _trainq trainq
