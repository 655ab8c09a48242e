// Locks all memory, says so, and waits for its input's end.
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    char byte;
    puts(mlockall(MCL_CURRENT | MCL_FUTURE) ? "refused" : "locked");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
