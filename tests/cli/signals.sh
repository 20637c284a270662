# A second signal ends a command that is stuck; two at once are one wish, as timeout(1) sends them.
set -m # else jobs in the background ignore SIGINT
"$K3" synth ckpt --preset tiny --experts 192 --quiet >/dev/null
mkfifo pipe
exec 3<>pipe
stuck() { # in a write: nobody takes more than the first byte of what fills the pipe
    "$K3" inspect ckpt/model-00002-of-000008.safetensors --json >pipe 3>&- &
    pid=$!
    head -c 1 <&3
    echo
}
stuck
kill -TERM $pid
sleep 1
kill -TERM $pid
wait $pid 2>/dev/null
echo "exit $?"
exec 3>&-
exec 3<>pipe
stuck
kill -INT $pid
kill -TERM $pid
kill -0 $pid && echo "still there"
cat <&3 >rest &
cat=$!
disown $cat # its end is no news: when the shell told of it was chance
wait $pid 2>/dev/null
echo "exit $?"
kill $cat
