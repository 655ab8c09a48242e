/*
 * processor: says what C libraries choose their routines for copying and zeroing by. On x86-64, whether
 * rep movsb is said to be fast for long and for short copies; on aarch64, whether there are vectors of
 * any length (SVE), and how many bytes dc zva zeroes.
 */
#include "../common.h"

#if defined __x86_64__
#include <cpuid.h>

static void say(void)
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    require(__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx));
    printf("processor: erms %u, fsrm %u\n", ebx >> 9 & 1, edx >> 4 & 1);
}
#elif defined __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>

static void say(void)
{
    uint64_t zeroing;
    __asm__("mrs %0, dczid_el0" : "=r"(zeroing));
    printf("processor: sve %d, zva %d\n", (getauxval(AT_HWCAP) & HWCAP_SVE) != 0,
           4 << (zeroing & 15));
}
#else
#error "say what C libraries of this processor look at"
#endif

int main(int argc, char **argv)
{
    parse_options(argc, argv, "Say how the processor claims to copy and to zero.", NULL, 0);
    say();
    return finish();
}
