# shellcheck shell=bash
# Functions for recipes that download files. With --dry-run they print what they would do.

# fetch URL FILE BYTES [SHA256]: download FILE unless it exists, and check that it has at least BYTES bytes and, if a
# checksum is published, that checksum.
fetch() {
    local remedy="remove it and try again, or give local text with DATA=folder" size
    if [ -e "$2" ]; then return; fi
    perform mkdir -p "$(dirname "$2")"
    perform curl --fail --location --silent --show-error --continue-at - --output "$2.partial" "$1" ||
        die "$1: could not be downloaded; see above, or give local text with DATA=folder"
    if [ -z "${dry_run:-}" ]; then
        size=$(wc -c <"$2.partial")
        [ "$size" -ge "$3" ] || die "$2.partial: has $size bytes, expected at least $3; $remedy"
        [ -z "${4:-}" ] || sha256sum --check --quiet >/dev/null <<<"$4  $2.partial" || die "$2.partial: its checksum is not the published one; $remedy"
    fi
    perform mv "$2.partial" "$2"
}

# unpack FOLDER: unpack downloads/FOLDER.tar.gz unless the model in it is there.
unpack() {
    local part=downloads/$1.partial
    if [ -e "downloads/$1/model.pt" ]; then return; fi
    perform mkdir -p "$part" "downloads/$1"
    perform tar -xzf "downloads/$1.tar.gz" -C "$part"
    perform mv "$part/$1"/* "downloads/$1"
    perform rm -r "$part"
}

# from_archives OUT ARCHIVE:MEMBER...: concatenate members of archives (tar, or zip by file name) and clean the text.
from_archives() {
    local item
    for item in "${@:2}"; do
        case $item in
            *.zip:*) perform_to "$1.whole" unzip -p "${item%%:*}" "${item#*:}" ;;
            *) perform_to "$1.whole" tar -xzOf "${item%%:*}" "${item#*:}" ;;
        esac
    done
    tool clean-lines "$1.whole" "$1"
    perform rm "$1.whole"
}

# from_sacrebleu SET PAIR SIDE OUT: a published test set; sacrebleu checks its checksum. SIDE is src or ref.
from_sacrebleu() {
    perform_to "$4.whole" sacrebleu --test-set "$1" --language-pair "$2" --echo "$3" ||
        die "sacrebleu --test-set $1: could not be downloaded; see above, or give local text with DATA=folder"
    tool clean-lines "$4.whole" "$4"
    perform rm "$4.whole"
}

# perform_to FILE COMMAND...: append the output of a command to FILE.
perform_to() { if [ -n "${dry_run:-}" ]; then printf '%q ' "${@:2}" && say ">>$1"; else "${@:2}" >>"$1"; fi; }

# from_multi30k FOLDER TEST: captions of Multi30k as {train,valid,test}.{en,de}. No checksums are published. The minimum
# sizes are guesses that detect an error page or a truncated file.
from_multi30k() {
    local item set name bytes language files=() url=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
    for item in train:train:400000 val:valid:10000 "$2:test:10000"; do
        IFS=: read -r set name bytes <<<"$item"
        for language in en de; do
            fetch "$url/$set.$language.gz" "downloads/multi30k/$set.$language.gz" "$bytes"
            files+=("downloads/multi30k/$set.$language.gz" "$1/$name.$language")
        done
    done
    tool clean-lines "${files[@]}"
}
