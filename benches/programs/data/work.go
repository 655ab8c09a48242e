// Memory of C and of Go in one program, from many goroutines, and names through the C library.
package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t work(uint64_t seed) {
    char *kept[64] = {0};
    uint64_t sum = 0;
    for (int i = 0; i < 3000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int at = seed >> 58;
        size_t size = 1 + (seed >> 30) % (i % 50 ? 2000 : 400000);
        if (kept[at]) sum += (unsigned char)kept[at][0];
        kept[at] = realloc(kept[at], size);
        memset(kept[at], i, size);
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return sum;
}
*/
import "C"

import (
	"fmt"
	"net"
	"os/user"
	"sort"
	"sync"
	"unsafe"
)

func main() {
	var wait sync.WaitGroup
	sums := make([]uint64, 200)
	for i := range sums {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			for j := 0; j < 5; j++ {
				sums[i] += uint64(C.work(C.uint64_t(i*10 + j)))
				text := C.CString(fmt.Sprint("text ", i, j))
				sums[i] += uint64(len(C.GoString(text)))
				C.free(unsafe.Pointer(text))
				_ = make([]byte, 100000)
			}
		}(i)
	}
	wait.Wait()
	total := uint64(0)
	for _, sum := range sums {
		total += sum
	}
	fmt.Println(total)
	if me, err := user.LookupId("0"); err == nil {
		fmt.Println(me.Username)
	}
	names, err := net.LookupHost("localhost")
	sort.Strings(names)
	fmt.Println(len(names) > 0, err)
}
