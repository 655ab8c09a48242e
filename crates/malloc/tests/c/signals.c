/* Does a signal handler that allocates, as it must not but does, leave per-CPU caches whole? */
#include "common.h"
#include <signal.h>
#include <sys/time.h>

static volatile int hits;
static void on_signal(int number) {
    (void)number;
    hits++;
    void *p = malloc(64);
    stamp(p, 64, hits);
    CHECK(stamped(p, 64, hits));
    free(p);
}

int main(void) {
    /* With per-CPU caches the hot path may be interrupted anywhere. Refills may not, so this one
     * size is kept away from them. */
    void *warm[20];
    for (int i = 0; i < 20; i++) warm[i] = malloc(64);
    for (int i = 0; i < 20; i++) free(warm[i]);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; hits < 1000 && i < 200000000; i++) {
        char *p = malloc(64);
        p[0] = 1;
        p[63] = (char)i;
        free(opaque(p));
    }
    CHECK(hits >= 1000);
    return 0;
}
