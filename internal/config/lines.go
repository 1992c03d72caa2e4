package config

import (
	"bytes"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// index knows on which line of a document each dotted key stands. A table's key
// is its first header.
type index map[string]int

// lines indexes a document that decodes. Keys inside inline tables are found
// under the inline table's own key.
func lines(doc []byte) index {
	ix := index{}
	var p unstable.Parser
	p.Reset(doc)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		var parts []string
		row := 0
		for it := e.Key(); it.Next(); {
			n := it.Node()
			parts = append(parts, string(n.Data))
			if row == 0 {
				row = bytes.Count(doc[:n.Raw.Offset], []byte("\n")) + 1
			}
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = parts
		case unstable.KeyValue:
			parts = append(append([]string(nil), table...), parts...)
		default:
			continue
		}
		key := strings.Join(parts, ".")
		if _, seen := ix[key]; !seen {
			ix[key] = row
		}
	}
	return ix
}

// of finds a key's line, or that of the nearest table around it; 0 for none.
func (ix index) of(key string) int {
	for {
		if n, ok := ix[key]; ok {
			return n
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return 0
		}
		key = key[:i]
	}
}
