// Command audit tells what is new on the machine:
//
//	audit save FILE [FOLDER ...]
//	audit diff FILE [FOLDER ...]   exit 1 where anything is
package main

import (
	"fmt"
	"log"
	"os"

	"berth/test/audit"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: audit save|diff FILE [FOLDER ...]")
	}
	now := audit.Take(os.Args[3:]...)
	switch os.Args[1] {
	case "save":
		if err := now.Save(os.Args[2]); err != nil {
			log.Fatal(err)
		}
	case "diff":
		old, err := audit.Load(os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		left := now.New(old)
		for _, l := range left {
			fmt.Println("new", l)
		}
		fmt.Printf("audit: %d left over\n", len(left))
		if len(left) > 0 {
			os.Exit(1)
		}
	default:
		log.Fatalf("audit: unknown word %q", os.Args[1])
	}
}
