"""The foreign programs of `foreign.py`: what they run, and the files they read."""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path

# Shell commands; each takes about half a second under glibc. $THREADS: a row for each count.
PROGRAMS = {
    "gcc": "gcc -O1 -w -I mimalloc/include -c mimalloc/src/page.c -o gcc.o",
    "g++": "g++ -std=c++20 -fsyntax-only -w headers.cc",
    "clang": "clang -O1 -w -I mimalloc/include -c mimalloc/src/page.c -o clang.o",
    "clang++": "clang++ -std=c++20 -fsyntax-only -w headers.cc",
    "objdump": "objdump -d -l -C /usr/lib/*-linux-gnu/libstdc++.so.6 | head -c 20000000",
    "cppcheck": "cppcheck -q --force --max-configs=2 mimalloc/src",
    "git log": "git --git-dir=repository log -p -n 400",
    "git pack-objects": "git --git-dir=repository rev-list --objects -n 1500 --all |"
    " git --git-dir=repository pack-objects -q --no-reuse-delta --threads=$THREADS --stdout",
    "sqlite": "sqlite3 :memory: < table.sql",
    "redis": "redis-server --save '' --port 0 --unixsocket $PWD/redis.sock & "
    "until redis-cli -s redis.sock ping; do sleep 0.02; done;"
    ' redis-cli -s redis.sock eval "$(cat redis.lua)" 0; redis-cli -s redis.sock shutdown; wait',
    "z3": "z3 puzzle.smt2",
    "z3 in parallel": "z3 parallel.enable=true parallel.threads.max=$THREADS puzzle.smt2",
    "ruby": "ruby words.rb",
    "lua": "lua5.4 words.lua",
    "jq": "jq -c 'map(select(.score > 50)) | group_by(.name[0:2]) | map(length)' records.json",
    "python": "/usr/bin/python3 words.py",
    "python threads": "/usr/bin/python3 threads.py $THREADS",
    "perl": "perl words.pl",
    "perl threads": "perl threads.pl $THREADS",
    "php": "USE_ZEND_ALLOC=0 php -n words.php",
    "node": "node words.js",
    "node workers": "node workers.js $THREADS",
    "tcl": "tclsh words.tcl",
    "gawk": "gawk -f words.awk words.txt words.txt words.txt",
    "bash": "bash words.sh",
    "xmllint": "for turn in 1 2 3 4 5; do"
    " xmllint --xpath 'count(//record[score > 50])' records.xml; done",
    "xsltproc": "xsltproc records.xsl records.xml",
    "gnuplot": "gnuplot plot.gp",
    "dot": "dot -Tsvg graph.dot",
    "groff": "groff -Tutf8 -man text.1",
    "sort": "sort --parallel=$THREADS -S 64M $(yes words.txt | head -n 16)",
    "xz": "xz -1 -T $THREADS --block-size=262144 -c words.txt",
    "zstd": "zstd -q -12 -T$THREADS -c words.txt",
}

FILES = {
    "headers.cc": """
        #include <algorithm>
        #include <filesystem>
        #include <functional>
        #include <iostream>
        #include <map>
        #include <ranges>
        #include <regex>
        #include <unordered_map>
        std::regex words("[a-z]+");
        std::unordered_map<std::string, std::vector<std::map<int, std::string>>> all;
    """,
    "table.sql": """
        create table record (id integer primary key, name text, score integer);
        with recursive number(n) as (select 1 union all select n + 1 from number where n < 150000)
          insert into record select n, hex(n * 7919 % 60013) || 'x' || n, n * 31 % 97 from number;
        create index by_name on record(name);
        select count(*), sum(length(name)) from record a where exists
          (select 1 from record b where b.name = a.name and b.score > 50);
        select score, group_concat(name) from record group by score;
        update record set name = name || name where score % 3 = 0;
        delete from record where score % 5 = 0;
    """,
    "redis.lua": """
        for i = 1, 60000 do redis.call('set', 'key' .. i, string.rep('v', i % 400)) end
        for i = 1, 30000 do redis.call('lpush', 'list' .. i % 500, 'item' .. i) end
        for i = 1, 60000, 2 do redis.call('del', 'key' .. i) end
        for i = 1, 30000 do redis.call('hset', 'hash' .. i % 900, 'field' .. i, i) end
        return 1
    """,
    "words.rb": """
        counts = Hash.new(0)
        File.foreach("words.txt") { |line| line.split.each { |word| counts[word + "s"] += 1 } }
        sorted = counts.sort_by { |word, count| [-count, word] }
        puts sorted.map { |pair| pair.join(" ") }.join.length
        puts (1..200_000).map { |i| "item #{i}" }.group_by(&:length).transform_values(&:size)
    """,
    "words.lua": """
        local counts = {}
        for line in io.lines("words.txt") do
          for word in line:gmatch("%a+") do counts[word .. "s"] = (counts[word .. "s"] or 0) + 1 end
        end
        local all = {}
        for i = 1, 300000 do all[i] = { name = "item " .. i, at = i } end
        table.sort(all, function(a, b) return a.name < b.name end)
        print(#all, all[1].name)
    """,
    "words.py": """
        import collections, json
        lines = open("words.txt")
        counts = collections.Counter(word + "s" for line in lines for word in line.split())
        records = json.load(open("records.json"))
        tree = [{"left": str(i), "right": [i, str(i)]} for i in range(150_000)]
        print(len(counts), len(json.dumps(records)), len(tree))
    """,
    "threads.py": """
        import sys, threading
        def work(seed):
            for turn in range(200_000 // int(sys.argv[1])):
                [bytes(64 + (turn * seed + i) % 900) for i in range(20)]
        all = [threading.Thread(target=work, args=(i,)) for i in range(int(sys.argv[1]))]
        [thread.start() for thread in all]
        [thread.join() for thread in all]
    """,
    "words.pl": """
        my %counts; open my $in, "<", "words.txt";
        while (<$in>) { $counts{$_ . "s"}++ for split }
        my @all = map { { name => "item $_", at => $_ } } 1 .. 200000;
        @all = sort { $a->{name} cmp $b->{name} } @all;
        print scalar(keys %counts), $all[0]{name}, "\\n";
    """,
    "threads.pl": """
        use threads; my $count = shift;
        my @all = map { my $seed = $_; threads->create(sub {
            my %found; $found{$_ * $seed % 5003} .= "x$_" for 1 .. 2_000_000 / $count;
            return scalar keys %found;
        }) } 1 .. $count;
        print $_->join, "\\n" for @all;
    """,
    "words.php": """
        <?php
        $counts = [];
        foreach (file("words.txt") as $line)
            foreach (explode(" ", trim($line)) as $word) @$counts[$word . "s"]++;
        arsort($counts);
        $all = [];
        for ($i = 0; $i < 150000; $i++) $all[] = ["name" => "item $i", "at" => $i];
        usort($all, fn($a, $b) => strcmp($a["name"], $b["name"]));
        echo count($counts), $all[0]["name"], "\\n";
    """,
    "words.js": """
        const fs = require("fs"), zlib = require("zlib");
        const text = fs.readFileSync("words.txt", "utf8"), counts = new Map();
        for (const word of text.split(/\\s+/))
            counts.set(word + "s", (counts.get(word + "s") || 0) + 1);
        const part = (_, i) => Buffer.from(text.slice(i * 100, i * 100 + 3000));
        const parts = Array.from({ length: 2000 }, part).map((one) => zlib.deflateSync(one));
        console.log(counts.size, parts.reduce((sum, one) => sum + one.length, 0));
    """,
    "workers.js": """
        const { Worker, isMainThread } = require("worker_threads");
        if (isMainThread) for (let i = 0; i < process.argv[2]; i++) new Worker(__filename);
        else {
            const parts = Array.from({ length: 2000 }, (_, i) => Buffer.alloc(i % 3000));
            console.log(JSON.stringify(parts).length);
        }
    """,
    "words.tcl": """
        set in [open words.txt]
        while {[gets $in line] >= 0} { foreach word [split $line] { incr counts(${word}s) } }
        for {set i 0} {$i < 150000} {incr i} { lappend all [list "item $i" $i] }
        puts "[array size counts] [lindex [lsort -index 0 $all] 0]"
    """,
    "words.awk": """
        { for (i = 1; i <= NF; i++) counts[$i "s"]++; lines[NR] = $0 "." }
        END { for (word in counts) total += counts[word]; print total, length(lines) }
    """,
    "words.sh": """
        declare -A counts
        for i in {1..40000}; do counts["item $((i * 7919 % 20011))"]+="x$i"; done
        all=("${!counts[@]}"); printf '%s' "${all[@]/item/thing}" | wc -c
    """,
    "records.xsl": """
        <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
        <xsl:template match="/"><all><xsl:for-each select="//record"><xsl:sort select="name"/>
        <one at="{score}"><xsl:value-of select="concat(name, '!')"/></one>
        </xsl:for-each></all></xsl:template></xsl:stylesheet>
    """,
    "plot.gp": """
        set terminal svg
        set output "/dev/null"
        set isosamples 200
        set samples 200
        splot sin(x) * cos(y) with lines, x * y / 20 with lines
        set contour
        set view map
        splot sin(x * y / 4) with lines
    """,
}


def puzzle(queens: int) -> str:
    """Return queens on a board as a formula for an SMT solver."""
    names = [f"q{row}" for row in range(queens)]
    lines = [f"(declare-const {name} Int)" for name in names]
    lines += [f"(assert (and (<= 0 {name}) (< {name} {queens})))" for name in names]
    for i, first in enumerate(names):
        for j in range(i + 1, queens):
            lines.append(f"(assert (distinct {first} {names[j]}))")
            lines.append(f"(assert (distinct (- {first} {names[j]}) {j - i} {i - j}))")
    return "\n".join([*lines, "(check-sat)", "(get-model)"])


def write_inputs(folder: Path, mimalloc: Path, repository: Path) -> None:
    """Put all files that the programs read into a folder: the same ones each time."""
    draw = random.Random(1)
    vocabulary = [
        "".join(draw.choices("abcdefghijklmnoprstuvw", k=draw.randrange(3, 11)))
        for _ in range(20_000)
    ]
    words = [" ".join(draw.choices(vocabulary, k=10)) for _ in range(30_000)]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    records = [
        {"name": name, "score": draw.randrange(100), "tags": draw.choices(vocabulary, k=3)}
        for name in draw.choices(vocabulary, k=30_000)
    ]
    (folder / "records.json").write_text(json.dumps(records))
    inner = "".join(
        f"<record><name>{one['name']}</name><score>{one['score']}</score></record>\n"
        for one in records
    )
    (folder / "records.xml").write_text(f"<all>\n{inner}</all>\n")
    edges = "".join(f"a{i} -> a{draw.randrange(i + 1)};\n" for i in range(2000))
    (folder / "graph.dot").write_text(f"digraph {{\n{edges}}}\n")
    paragraphs = "\n".join(f".PP\n{line}" for line in words[:20_000])
    (folder / "text.1").write_text(f".TH WORDS 1\n.SH WORDS\n{paragraphs}\n")
    (folder / "puzzle.smt2").write_text(puzzle(20))
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    (folder / "mimalloc").symlink_to(mimalloc)
    (folder / "repository").symlink_to(repository)
