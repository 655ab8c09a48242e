/* Does a fault in the library, found while it holds a lock, end the process with a message? The system gives it
 * addresses beyond all that there are, at which its debug build finds an overflow. */
#include "common.h"
#include "contigua_malloc.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static volatile int wrong;

/* The library's calls come here, too. */
void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (wrong && protection == PROT_NONE) return (void *)-(1L << 20);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

int main(void) {
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_CORE, &none));
    CHECK(malloc(1));
    /* What the message needs is to come from behind the lock. */
    contigua_malloc_flush();
    alarm(20);
    wrong = 1;
    CHECK(malloc((size_t)3 << 29));
    return 0;
}
