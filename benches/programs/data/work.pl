# Hashes, strings, regular expressions, closures, forks.
use strict;
use warnings;
use Digest::SHA qw(sha256_hex);
use Storable qw(dclone freeze thaw);

my (%hash, @kept);
my $state = 1;
sub rnd { $state = ($state * 1103515245 + 12345) % 4294967296; return int($state / 65536) % $_[0] }

for my $i (1 .. 200000) {
    $hash{ rnd(20000) } .= "x$i";
    delete $hash{ rnd(20000) } if $i % 3 == 0;
}
print sha256_hex(join ',', map { "$_=$hash{$_}" } sort keys %hash), "\n";
my $text = join ' ', map { "word$_ " . ('a' x rnd(50)) } 1 .. 20000;
my $count = () = $text =~ /(\w+?)(a{3,7})\b/g;
(my $changed = $text) =~ s/(a+)/length $1/ge;
print "$count ", sha256_hex($changed), "\n";
push @kept, do { my $n = $_; sub { $n * $_[0] } } for 1 .. 50000;
my $sum = 0;
$sum += $_->(3) for @kept;
my $copy = thaw(freeze(dclone({ map { $_ => [1 .. rnd(20)] } 1 .. 5000 })));
print "$sum ", scalar(keys %$copy), " ", join(',', (sort { $a <=> $b } map { rnd(1000000) } 1 .. 100000)[0 .. 5]), "\n";
for my $i (1 .. 100) {
    my $pid = fork();
    if (!$pid) { my @more = map { "y" x $_ } 1 .. 500; exit(@more == 500 ? 0 : 1) }
    waitpid($pid, 0);
    die "a child ended with $?" if $?;
}
print "done\n";
