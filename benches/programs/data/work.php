<?php
// Arrays, strings, regular expressions, JSON, sorting, cycles for the collector.
$state = 1;
function rnd(int $n): int { global $state; $state = ($state * 1103515245 + 12345) % 4294967296; return ($state >> 16) % $n; }
$kept = [];
for ($i = 0; $i < 200000; $i++) {
    $kept[rnd(5000)] = ['text' => str_repeat('x', rnd(300)), 'list' => range(0, rnd(10)), 'number' => $i];
    if ($i % 3 == 0) unset($kept[rnd(5000)]);
}
ksort($kept);
echo hash('sha256', json_encode($kept)), "\n";
echo count(json_decode(json_encode($kept), true)), "\n";
$text = '';
for ($i = 0; $i < 20000; $i++) $text .= "word$i " . str_repeat('a', rnd(50)) . ' ';
echo preg_match_all('/(\w+?)(a{3,7})\b/', $text), ' ', strlen(preg_replace_callback('/a+/', fn($m) => strlen($m[0]), $text)), "\n";
class Link { public $other; public $data; }
for ($i = 0; $i < 100000; $i++) { $a = new Link; $b = new Link; $a->other = $b; $b->other = $a; $a->data = str_repeat('c', 100); }
gc_collect_cycles();
$big = [];
for ($i = 0; $i < 60; $i++) $big[$i % 7] = str_repeat(chr(65 + $i % 26), 1000000 + $i);
echo hash('sha256', implode('', $big)), "\n";
echo hash('sha256', serialize(array_map(fn($k) => md5((string) $k), array_keys($kept)))), "\n";
echo strlen(gzcompress(str_repeat('deflate ', 100000), 9)), "\n";
