// Programs that loop over samples, positions or steps have as many operations as they have of these: the operations of
// one turn, with results as large as those of all turns, stand for the loop.
#pragma once

#include <vector>

#include "sim/base/json.h"

namespace foreshard {

// modules.json of captures of one program. Folded are loops of 32 turns and more, and those of which the captures have
// different numbers of turns. What a turn makes and gives back again is as large as one turn's.
void fold_loops(const std::vector<Json*>& documents);

}
