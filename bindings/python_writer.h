// Python callables as writers; they hold the GIL only while they run.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "writer.h"

namespace layercast::bindings {

namespace nb = nanobind;

class PythonWriter final : public Writer {
 public:
  enum class Style {
    kViews,      // writer(expert, views), views[rank][kind] a numpy uint8 array
    kAddresses,  // writer(expert, addresses of kind 0, of kind 1, ...), each a list with an int per rank
  };
  PythonWriter(nb::object callable, Style style) : callable_(std::move(callable)), style_(style) {}

  bool whole_experts() const override { return true; }
  void check(std::int64_t, std::size_t, std::size_t, std::span<const std::size_t>) override {
    cause_.reset();
  }
  void fill(const Piece& piece, const SlotView& slot) override;

  // For the garbage collector: the callable may well hold whoever holds this writer.
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(callable_.ptr());
    Py_VISIT(cause_.ptr());
    return 0;
  }
  void clear() {
    callable_.reset();
    cause_.reset();
  }

  // What the callable raised; cleared by the next layer.
  nb::object take_cause() { return std::move(cause_); }

 private:
  // The arguments for one place in a slot; made once, since a place's addresses do not change.
  struct Place {
    std::vector<std::byte*> addresses;  // [rank][kind]
    nb::object views;
    std::vector<nb::object> lists;
  };
  Place& place(const Piece& piece, std::size_t first_run, const SlotView& slot);
  void build(Place& place, const Piece& piece, std::size_t first_run) const;
  void call(Place& place, std::size_t expert) const;

  nb::object callable_, cause_;
  Style style_;
  std::vector<std::vector<Place>> places_;  // [slot][position in the piece]
  std::vector<std::byte*> addresses_;
};

}  // namespace layercast::bindings
