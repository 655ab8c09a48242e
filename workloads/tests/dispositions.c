// Prints which signals are ignored, handled or blocked, and the limits of resources.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

int main(void)
{
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, 0, &blocked);
    for (int number = 1; number < 65; number++) {
        struct sigaction action;
        if (!sigaction(number, 0, &action) && action.sa_handler != SIG_DFL)
            printf("%d %s\n", number, action.sa_handler == SIG_IGN ? "ignored" : "handled");
        if (sigismember(&blocked, number) == 1)
            printf("%d blocked\n", number);
    }
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        if (!getrlimit(resource, &limit))
            printf("limit %d: %lx %lx\n", resource, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    return 0;
}
