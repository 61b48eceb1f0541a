#include "pieces.h"

#include "check.h"

using layercast::Cut;
using layercast::Run;

void test_pieces() {
  const std::vector<std::size_t> kinds = {5, 1, 7};
  for (std::size_t experts = 1; experts <= 9; ++experts) {
    for (std::size_t piece_bytes = 1; piece_bytes <= 150; ++piece_bytes) {
      for (const bool whole : {false, true}) {
        const Cut cut(kinds, experts, piece_bytes, whole);
        std::vector<Run> runs;
        std::size_t at = 0;
        for (std::size_t p = 0; p < cut.pieces(); ++p) {
          cut.runs(p, runs);
          std::size_t in_piece = 0;
          for (const Run& run : runs) {
            const std::size_t start = run.kind == 0 ? 0 : run.kind == 1 ? 5 : 6;
            CHECK(run.expert * 13 + start + run.offset == at);
            CHECK(run.piece_offset == in_piece);
            CHECK(run.bytes > 0 && run.offset + run.bytes <= kinds[run.kind]);
            CHECK(!whole || (run.offset == 0 && run.bytes == kinds[run.kind]));
            at += run.bytes;
            in_piece += run.bytes;
          }
          CHECK(in_piece <= cut.piece_bytes());
        }
        CHECK(at == experts * 13);
      }
    }
  }
}
