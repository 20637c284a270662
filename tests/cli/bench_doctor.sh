# What bench and doctor say where nothing of it depends on the machine.
"$K3" bench nowhere --quiet
echo "exit $?"
mkdir empty
"$K3" bench empty --quiet
echo "exit $?"
LD_LIBRARY_PATH="$K3_BUILD/fake_bad" "$K3" doctor nowhere |
    sed -nE '/^missing +directory /p
             s/^(missing|absent) +(cuda|hip) .*(device [a-z]+: no [^:]*):.*/\2: \3/p'
echo "exit ${PIPESTATUS[0]}"
"$K3" doctor empty extra
echo "exit $?"
# Of small files no rate is given, of some more no advice is drawn from one.
route() { LC_ALL=C "$K3" doctor "$1" | sed -nE '/^[a-z]+ +route_page_cache/s/[0-9.]+ GB\/s: [0-9].* of 1 file/RATE/p; /not measured/{/page_cache/p}' | uniq; }
head -c 100000 /dev/zero >empty/small
route empty
mkdir more
head -c 17000000 /dev/urandom >more/file
route more
# What a killed doctor left of its temporary file goes; what only looks like it stays.
touch more/.k3-doctor-0123456789abcdef more/.k3-doctor-notes more/.k3-doctor-0123456789abcdeg
"$K3" doctor more >/dev/null
ls -A more
