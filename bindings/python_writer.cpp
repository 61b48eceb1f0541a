#include "python_writer.h"

#include <nanobind/ndarray.h>

#include "errors.h"

namespace layercast::bindings {

void PythonWriter::fill(const Piece& piece, const SlotView& slot) {
  const nb::gil_scoped_acquire gil;
  for (std::size_t at = 0; at < piece.runs.size(); at += piece.kinds) {
    const std::size_t expert = piece.runs[at].expert;
    try {
      call(place(piece, at, slot), expert);
    } catch (nb::python_error& raised) {
      const bool failed = raised.matches(PyExc_Exception);
      Error error(failed ? Code::kWriter : Code::kInterrupted,
                  std::string("the writer failed at expert ") + std::to_string(expert) + " of layer " +
                      std::to_string(piece.layer) + ": " + nb::type_name(raised.type()).c_str() + ": " +
                      nb::str(raised.value()).c_str());
      error.expert = static_cast<std::int64_t>(expert);
      cause_ = nb::borrow(raised.value());
      throw error;
    }
  }
}

PythonWriter::Place& PythonWriter::place(const Piece& piece, std::size_t first_run, const SlotView& slot) {
  const std::size_t position = first_run / piece.kinds;
  if (places_.size() <= piece.slot) places_.resize(piece.slot + 1);
  if (places_[piece.slot].size() <= position) places_[piece.slot].resize(position + 1);
  Place& found = places_[piece.slot][position];
  addresses_.clear();
  for (std::size_t r = 0; r < piece.ranks; ++r) {
    for (std::size_t k = 0; k < piece.kinds; ++k)
      addresses_.push_back(slot.address(r, piece.runs[first_run + k]));
  }
  if (found.addresses != addresses_) {
    found.addresses = addresses_;
    build(found, piece, first_run);
  }
  return found;
}

void PythonWriter::build(Place& place, const Piece& piece, std::size_t first_run) const {
  if (style_ == Style::kViews) {
    nb::list ranks;
    for (std::size_t r = 0; r < piece.ranks; ++r) {
      nb::list kinds;
      for (std::size_t k = 0; k < piece.kinds; ++k) {
        const std::size_t bytes = piece.runs[first_run + k].bytes;
        std::byte* address = place.addresses[r * piece.kinds + k];
        using View = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
        // The owner is nominal: the slots outlive every call of the writer, a view is valid inside it.
        kinds.append(View(address, {bytes}, nb::none()).cast());
      }
      ranks.append(nb::tuple(kinds));
    }
    place.views = nb::tuple(ranks);
    return;
  }
  place.lists.clear();
  for (std::size_t k = 0; k < piece.kinds; ++k) {
    nb::list addresses;
    for (std::size_t r = 0; r < piece.ranks; ++r) {
      addresses.append(reinterpret_cast<std::uintptr_t>(place.addresses[r * piece.kinds + k]));
    }
    place.lists.push_back(addresses);
  }
}

void PythonWriter::call(Place& place, std::size_t expert) const {
  if (style_ == Style::kViews) {
    callable_(expert, place.views);
    return;
  }
  nb::list arguments;
  arguments.append(expert);
  for (const nb::object& list : place.lists) {
    // Each call gets lists of its own: a writer may do with them what it likes.
    arguments.append(nb::steal(PyList_GetSlice(list.ptr(), 0, PyList_GET_SIZE(list.ptr()))));
  }
  callable_(*nb::tuple(arguments));
}

}  // namespace layercast::bindings
