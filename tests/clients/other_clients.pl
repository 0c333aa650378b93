# Perl's Redis against a real server. Argument: TCP port. One line `NAME: ok` or `NAME: FAILED why` a check.
use strict;
use warnings;
use Redis;

my $port = shift @ARGV;
$| = 1;

sub check { $_[0] or die 'line ' . (caller)[2] . "\n"; }

sub fields { my %f = @{ $_[0][1] }; return \%f; }

my @checks = (
    connect => sub {
        my $r = shift;
        check($r->ping && $r->echo('x') eq 'x' && !$r->exists('nothing'));
        check($r->client_setname('tester') && $r->info->{redis_mode} eq 'standalone');
    },
    GEN => sub {
        my $r = shift;
        my $text = $r->gen('k', 'hello', 'MAXTOKENS', 12, 'TEMP', 0, 'IGNOREEOS');
        my @entries = $r->xrange('k', '-', '+');
        check(@entries == 2 && fields($entries[1])->{text} eq $text);
    },
    BLOCK => sub {
        my $r = shift;
        my @action = ('k', 'hello', 'MAXTOKENS', 12, 'IGNOREEOS', 'ID', 'one', 'BLOCK', 4000);
        my $text;
        $text = $r->gen(@action) until defined $text;
        check($text eq $r->gen(@action) && $r->xlen('k') == 2);
    },
    'ASYNC and XREAD' => sub {
        my $r = shift;
        my $last = $r->gen('s', 'hello', 'MAXTOKENS', 30, 'IGNOREEOS', 'ASYNC');
        my ($text, $end) = ('', undef);
        until ($end) {
            my $reply = $r->xread('BLOCK', 4000, 'STREAMS', 's', $last) or next;
            for my $entry (@{ $reply->[0] ? (ref $reply->[0] ? $reply->[0][1] : $reply->[1]) : [] }) {
                my $f = fields($entry);
                $last = $entry->[0];
                $text .= $f->{piece} if defined $f->{piece};
                $end = $f if defined $f->{finish};
            }
        }
        check($text eq $end->{text});
    },
    FORK => sub {
        my $r = shift;
        $r->gen('f', 'hello', 'MAXTOKENS', 3, 'IGNOREEOS');
        check($r->fork('f', 'f1', 'f2') == 2 && $r->xlen('f2') == 2);
    },
    CANCEL => sub {
        my $r = shift;
        $r->seam('STEPS', 0);
        $r->gen('c', 'hello', 'MAXTOKENS', 3000, 'IGNOREEOS', 'ASYNC');
        check($r->cancel('c') == 1);
        $r->seam('STEPS', -1);
        my @last = $r->xrevrange('c', '+', '-', 'COUNT', 1);
        check(fields($last[0])->{finish} eq 'cancelled');
    },
    pipeline => sub {
        my $r = shift;
        my @out;
        $r->xlen('p', sub { push @out, $_[0] });
        $r->echo('x', sub { push @out, $_[0] });
        $r->wait_all_responses;
        check("@out" eq '0 x');
    },
    MULTI => sub {
        my $r = shift;
        $r->multi;
        $r->gen('m', 'x', 'MAXTOKENS', 2, 'IGNOREEOS');
        $r->xlen('m');
        my @out = $r->exec;
        check($out[0] =~ /-/ && $out[1] == 1);
    },
    reconnect => sub {
        my $r = shift;
        $r->quit;
        check(Redis->new(server => "127.0.0.1:$port")->ping);
    },
);

while (my ($name, $run) = splice @checks, 0, 2) {
    my $r = Redis->new(server => "127.0.0.1:$port", encoding => undef);
    $r->flushall;
    if (eval { $run->($r); 1 }) {
        print "$name: ok\n";
    } else {
        my $why = $@;
        $why =~ s/\n/ /g;
        print "$name: FAILED $why\n";
    }
}
