/* A handler of faults that is there before the library: it gets the faults that are not the library's, and those of guarded
 * objects once they are reported. Linked statically, so that a constructor of the program is first. */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile char *own;
static volatile int faults;

static void recover(int signal, siginfo_t *info, void *context) {
    if (own && info->si_addr != own) _exit(3);
    faults++;
    siglongjmp(back, 1);
}
__attribute__((constructor(101))) static void first(void) {
    struct sigaction action = {.sa_sigaction = recover, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, NULL));
}

int main(void) {
    struct sigaction now;
    CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_sigaction != recover);
    own = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1)) *own = 1;
    CHECK(faults == 3);
    volatile char *p = opaque(malloc(100));
    free((void *)p);
    *p = 1;
    return 0;
}
