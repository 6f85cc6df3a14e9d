// A script that is written from a template: a file of its lines, of which those stay whose conditions hold.
//
//     %if CONDITION   %elif CONDITION   %else   %end
//     %(CONDITION)line                   a line of one condition
//     %let NAME TEXT                     a word for a text, from here on
//     %module PATH VALUE                 self.PATH = VALUE, behind the modules that PATH leads
//     through %scope                             no such module is there yet
//     %# COMMENT
//     ${NAME}   ${CONDITION ? TEXT : TEXT}   ${CONDITION ? TEXT}
//
// A condition is "A and B or C"; a term is NAME (true, not 0, not ""), not NAME, or a comparison of a name (=, !=, >)
// with words of which one is enough (fa1|fa2). A line of one ${...} that comes out empty is left out.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "sim/base/json.h"

namespace foreshard {

using ScriptFacts = std::function<Json(std::string_view name)>;

std::string script_of(std::string_view text, const ScriptFacts& facts);

}
