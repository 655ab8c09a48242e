// Unmaps all that a program can have, and so what QEMU has there.
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    if (write(1, "there\n", 6) == 6)
        munmap((void *)0x10000, 0x7ffffff00000 - 0x10000);
    return 0;
}
